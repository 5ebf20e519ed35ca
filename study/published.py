"""Published accuracies of the methods online on Split CIFAR-10, and ours beside them."""

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ddn_lightning.report.names import METHODS, title_of
from ddn_lightning.report.seed_group import STATISTICS
from ddn_lightning.report.statistic import estimate
from ddn_lightning.report.tables import NOTHING, markdown_table
from study.measured import MEASURES, Group, MeasuredRun, measured_runs, reported
from study.paper import Cell, paper_targets

DATA, SETTING, BUFFER_SIZE, LARGER = "cifar10", "online", 200, 500  # of our runs beside published ones
NETWORKS = {"ResNet18 width 20": "", "ResNet18 width 20 in bf16-mixed": ", bf16"}  # of which the first that was run
DDN_PAPER = "[DDN paper](https://arxiv.org/abs/2505.20135)"
PAPER_NETWORK = "ResNet-18 of width 64"
OTHERS = (("er", "cba"),)  # plug-ins that are methods of their own
NOT_RUN = "not run yet"


@dataclass(frozen=True)
class Published:
    """A published accuracy of a method, online on Split CIFAR-10.

    Args:
        acc: Average accuracy in percent, with the digits that were published.
        buffer_size: Samples that the memory held.
        network: The network, if it is known.
        source: Who has published it, as Markdown.
        note: What else differs from our runs.
        our_options: The options of our runs that follow the published settings, as ``measured.csv`` names them.
    """

    acc: str
    buffer_size: int
    network: str
    source: str
    note: str = ""
    our_options: str = ""

    def __str__(self) -> str:
        memory = "" if self.buffer_size == BUFFER_SIZE else f", M = {self.buffer_size}"
        return f"{self.acc} ({self.source}{memory})"


def published(method: str, buffer_size: int = BUFFER_SIZE) -> Published | None:
    """A published accuracy of a method, by its key, of the nearest memory; the DDN paper's for the methods in it."""
    return min(_all_published(method), key=lambda known: abs(known.buffer_size - buffer_size), default=None)


@cache
def _all_published(method: str) -> list[Published]:
    """What the DDN paper reports for a method; of other methods, what ``published.csv`` has."""
    targets = [paper_targets().get(Cell(SETTING, DATA, size, method)) for size in (BUFFER_SIZE, LARGER)]
    of_paper = [
        Published(f"{target.acc:.2f}", target.cell.buffer_size, PAPER_NETWORK, DDN_PAPER, "its Table 1")
        for target in targets
        if target is not None and target.acc is not None
    ]
    if of_paper:
        return of_paper
    text = Path(__file__).with_name("published.csv").read_text(encoding="utf-8")
    rows = [row for row in csv.DictReader(text.splitlines()) if row["method"] == method]
    texts = ("network", "source", "note", "our_options")
    return [Published(row["acc"], int(row["buffer_size"]), *(row[name] for name in texts)) for row in rows]


def our_runs(method: str, plugin: str = "none", buffer_size: int = BUFFER_SIZE) -> tuple[list[MeasuredRun], str]:
    """Our runs of a method, by its key, at its published settings, and their precision as a suffix."""
    known, groups = published(method), reported(measured_runs())
    options = "" if known is None else known.our_options
    for network, precision in NETWORKS.items():
        runs = groups.get(Group(DATA, network, SETTING, buffer_size, method, plugin, options))
        if runs:
            return runs, precision
    return [], ""


def measured(method: str) -> str:
    """Our accuracy for a method, by its key: mean ± standard deviation (n), precision and options."""
    for buffer_size in (BUFFER_SIZE, 0):  # bounds have no memory
        runs, precision = our_runs(method, buffer_size=buffer_size)
        if runs:
            options = f", {runs[0].group.options}" if runs[0].group.options else ""
            return f"{estimate(run.acc for run in runs)}{precision}{options}"
    return NOT_RUN


def memory_table() -> str:
    """Each method with either memory as Markdown: the published ACC, ours with FM, and ours calibrated."""
    sizes = (BUFFER_SIZE, LARGER)
    columns = [f"M = {size}: {name}" for size in sizes for name in ("published", "ACC / FM", "calibrated")]
    methods = sorted((facts.key for facts in METHODS.values()), key=lambda key: (key != "er", title_of(key).casefold()))
    rows = []
    for method, plugin in [*((method, "none") for method in methods), *OTHERS]:
        cells = [cell for size in sizes for cell in (_nearest(method, plugin, size), *_ours(method, plugin, size))]
        if our_runs(method, plugin)[0]:
            rows.append([title_of(method, plugin), *cells])
    return markdown_table(["method", *columns], rows)


def _nearest(method: str, plugin: str, buffer_size: int) -> str:
    """What was published for a memory nearer to this than to our other one."""
    known = published(method, buffer_size) if plugin == "none" else None
    other = BUFFER_SIZE + LARGER - buffer_size
    if known is None or abs(known.buffer_size - buffer_size) > abs(known.buffer_size - other):
        return NOTHING
    return known.acc if known.buffer_size == buffer_size else f"{known.acc}, M = {known.buffer_size}"


def _ours(method: str, plugin: str, buffer_size: int) -> list[str]:
    """ACC and FM with running and with calibrated statistics."""
    runs, precision = our_runs(method, plugin, buffer_size)
    pairs = [[estimate(run.value(measure, kind) for run in runs) for measure in MEASURES] for kind in STATISTICS]
    texts = [" / ".join(NOTHING if found is None else found.mean_std for found in pair) for pair in pairs]
    return [f"{text}{precision}" if pair[0] else NOTHING for text, pair in zip(texts, pairs, strict=True)]
