"""What the paper's runs would cost on a GPU: counted operations over an assumed rate, not a measurement."""

from collections.abc import Sequence
from functools import cache

import torch
from torch.utils.flop_counter import FlopCounterMode

from ddn_lightning.names import METHODS
from ddn_lightning.networks.resnet18 import ResNet18
from ddn_lightning.report.paper import paper_targets
from ddn_lightning.report.paper_setting import PAPER_DATA, SETTINGS, WIDTH
from ddn_lightning.report.recorded_cost import recorded_steps
from ddn_lightning.report.tables import markdown_table
from ddn_lightning.reproduce.cell import Cell
from ddn_lightning.reproduce.plan import ABLATIONS, HOSTS, PAPER_RUNS

SUSTAINED = 10e12  # FLOP/s, assumed: about half of the 19.5 TFLOP/s that an NVIDIA A100 has at most in float32
ASSUMPTION = "an assumed 10 TFLOP/s, half of an A100's peak in float32"
BATCH = 32  # incoming images of a step, and as many from memory
EPOCHS = {setting: epochs for epochs, setting in SETTINGS.items()}
BILEVEL = ("ddn", "l2y")  # plug-ins that take a virtual step; the cost of DDN's is that of either


def gpu_hours(cells: Sequence[Cell], width: int = WIDTH) -> float | None:
    """Hours of one run of each cell, or ``None`` if one is not of the paper's data.

    Training only: evaluation adds a tenth to a fifth to an online run of ER, and next to nothing offline.

    Args:
        cells: The cells, once for each run.
        width: Width of the ResNet-18.
    """
    if any(cell.data not in PAPER_DATA for cell in cells):
        return None
    operations = [
        steps_of(cell) * er_steps(cell) * er_step_operations(width, PAPER_DATA[cell.data].image_size) for cell in cells
    ]
    return sum(operations) / SUSTAINED / 3600


def steps_of(cell: Cell) -> int:
    """Training steps of a run; a task's last, smaller batch is left out online only.

    >>> steps_of(Cell("online", "cifar10", 200, "er")), steps_of(Cell("offline", "cifar100", 2000, "er"))
    (1560, 78500)
    """
    data, epochs = PAPER_DATA[cell.data], EPOCHS[cell.setting]
    images = data.num_images["train"] // data.tasks
    batches = images // BATCH if epochs == 1 else -(-images // BATCH)
    return data.tasks * batches * epochs


def er_steps(cell: Cell) -> float:
    """The cost of a step in steps of ER, as ``ddn bench`` has measured it on a CPU; 1 for what it has not measured.

    >>> er_steps(Cell("online", "cifar10", 200, "er")), round(er_steps(Cell("online", "cifar10", 200, "er", "ddn")), 2)
    (1.0, 3.62)
    """
    class_names = [name for name, facts in METHODS.items() if facts.key == cell.method]
    name = f"{class_names[0]} + DDN" if cell.plugin in BILEVEL else class_names[0]
    return recorded_steps().get(name, 1.0)


@cache
def er_step_operations(width: int, image_size: int) -> int:
    """Floating-point operations of a step of ER: forward and backward, incoming batch and draw, without the head."""
    with torch.device("meta"):  # shapes without values
        network, images = ResNet18(width=width), torch.empty(2 * BATCH, 3, image_size, image_size)
    with FlopCounterMode(display=False) as counter:
        network(images).sum().backward()
    return int(counter.get_total_flops())


def cost_table() -> str:
    """The cells of Tables 1 to 4 with the paper's number of runs and what they would cost, as Markdown."""
    parts: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in sorted(paper_targets(), key=lambda cell: (-PAPER_RUNS[cell.setting], cell.data, _kind(cell))):
        parts.setdefault((cell.setting, cell.data, _kind(cell)), []).append(cell)
    rows = [_cost_row(names, cells) for names, cells in parts.items()]
    rows.append(_cost_row(("all", "", ""), list(paper_targets())))
    header = ["setting", "data", "methods", "cells", "runs", "steps of a run", "ER steps of a step", "GPU hours"]
    return markdown_table(header, rows, numbers_from=3)


def _kind(cell: Cell) -> str:
    if cell.plugin in ABLATIONS:
        return "other labels"
    kind = "hosts" if cell.method in HOSTS else "others"
    return kind if cell.plugin == "none" else f"{kind} + DDN"


def _cost_row(names: Sequence[str], cells: Sequence[Cell]) -> list[str]:
    runs = [cell for cell in cells for _ in range(PAPER_RUNS[cell.setting])]
    steps, factors = ([function(cell) for cell in cells] for function in (steps_of, er_steps))
    ranges = [
        f"{low:{form}}" if low == high else f"{low:{form}} - {high:{form}}"
        for form, low, high in ((",", min(steps), max(steps)), (".2f", min(factors), max(factors)))
    ]
    return [*names, str(len(cells)), f"{len(runs):,}", *ranges, f"{gpu_hours(runs) or 0:,.1f}"]
