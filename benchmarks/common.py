"""Shared by all benchmarks: random work of a given size, interleaved timing, exact counts, and records."""

import argparse
import json
import logging
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer, seed_everything
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.benchmark import Measurement, Timer
from torch.utils.flop_counter import FlopCounterMode

from ddn_lightning.callbacks.reservoir_sampling import ReservoirSampling
from ddn_lightning.core.replay_method import ReplayMethod
from ddn_lightning.data.task_sequence import TaskSequence
from ddn_lightning.methods.gdumb import GDumb
from ddn_lightning.methods.pixel_distillation import PixelDistillation
from ddn_lightning.networks.backbone import Backbone
from ddn_lightning.networks.resnet18 import ResNet18
from ddn_lightning.samples import Samples

RECORDS = Path(__file__).parent / "records"
Action = Callable[[], object]
Row = dict[str, str | int | float]


@dataclass(frozen=True)
class Workload:
    """The size of a training step."""

    width: int = 20  # channels of ResNet-18's first stage; the paper's is 64
    batch: int = 32  # incoming images per step, and images of each draw from memory
    image_size: int = 32
    num_classes: int = 10
    num_tasks: int = 2
    buffer_size: int = 200

    def images(self, number: int) -> Tensor:
        """Random images as in a dataset."""
        return torch.randint(256, (number, 3, self.image_size, self.image_size), dtype=torch.uint8)

    def samples(self, number: int, task: int) -> Samples:
        """Random samples of a task."""
        classes = self.num_classes // self.num_tasks
        labels = torch.randint(classes, (number,)) + task * classes
        return Samples(self.images(number), labels, tasks=torch.full((number,), task))

    def method(
        self, method_class: type[ReplayMethod], backbone: Backbone | None = None, **options: Any
    ) -> ReplayMethod:
        """A method of this size, by default with ResNet-18."""
        backbone = ResNet18(width=self.width) if backbone is None else backbone
        return method_class(backbone, self.num_classes, self.buffer_size, self.batch, **options)

    def trainer(self, **options: Any) -> Trainer:
        """A Trainer for the CPU that writes no files."""
        quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
        return Trainer(**{"accelerator": "cpu", "max_epochs": -1, "num_sanity_val_steps": 0, **quiet, **options})


class RandomImages(TaskSequence):
    """Random images.

    Args:
        workload: Their size, and the number of classes and tasks.
        steps: Batches per task.
        test_images: Test images of each class.
        **options: Arguments of a task sequence.
    """

    name = "random images"
    mean, std = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
    padding, flip = 4, True

    def __init__(self, workload: Workload, steps: int = 1, test_images: int = 1, **options: Any) -> None:
        self.num_classes = workload.num_classes
        super().__init__(num_tasks=workload.num_tasks, batch_size=workload.batch, **options)
        self.workload = workload
        self.steps = steps
        self.test_images = test_images

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        """Images for ``steps`` batches per task; for testing ``test_images`` of each class."""
        trained = self.num_tasks * self.steps * self.workload.batch
        number = trained if train else self.test_images * self.num_classes
        labels = torch.arange(number) * self.num_classes // number  # equally many per task
        return self.workload.images(number), labels


class PreparedMethod:
    """A method in its second task, with a full memory, ready for single training steps.

    Args:
        method_class: Class of the method.
        workload: Size of its steps.
        **options: Arguments of the method.
    """

    def __init__(self, method_class: type[ReplayMethod], workload: Workload, **options: Any) -> None:
        seed_everything(0, verbose=False)
        self.method = workload.method(method_class, **options)
        if isinstance(self.method, PixelDistillation):
            self.method.distillation_steps = 1  # at task ends, which are not timed
        if isinstance(self.method, GDumb):
            self.method.memory_epochs = 1
        self.trainer = workload.trainer()
        self.trainer.fit(self.method, RandomImages(replace(workload, num_tasks=2)))
        self.method.train()
        self.trainer.strategy.optimizers = self.method.configure_optimizers()
        self.batch = workload.samples(workload.batch, task=1)
        callbacks = self.trainer.callbacks  # type: ignore[attr-defined]  # Lightning does not declare it
        self.sampling = next((callback for callback in callbacks if isinstance(callback, ReservoirSampling)), None)
        if self.sampling is not None:
            memory, first = self.method.memory, workload.samples(workload.buffer_size, task=0)
            memory.add(replace(first, logits=memory[torch.zeros(len(first), dtype=torch.long)].logits))

    def step(self) -> None:
        """Train on the batch and offer it to the memory."""
        outputs = self.method.training_step(self.batch, 0)
        if self.sampling is not None:
            self.sampling.on_train_batch_end(self.trainer, self.method, outputs, self.batch, 0)


def interleaved(actions: Mapping[str, Action], rounds: int, number: int = 1) -> dict[str, list[float]]:
    """Processor seconds of each action in each round, on one thread; the actions take turns.

    Args:
        actions: The actions by name.
        rounds: Number of timings of each.
        number: Calls per timing, after two untimed ones.
    """
    timers = {name: Timer("action()", globals={"action": a}, timer=time.process_time) for name, a in actions.items()}
    found: dict[str, list[Measurement]] = {name: [] for name in actions}
    for _ in range(rounds):
        for name, timer in timers.items():
            found[name].append(timer.timeit(number))
    return {name: [time for measured in timings for time in measured.times] for name, timings in found.items()}


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not annotate it
    """Counts operations that compute, without views, allocations and questions such as ``is_same_size``."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        computes = func.namespace == "aten" and "empty" not in func.overloadpacket.__name__
        self.number += computes and not func.is_view and not isinstance(result, bool)
        return result


def counts(action: Action) -> Row:
    """What a call of an action takes on any machine: floating-point operations, dispatched ones, and peak memory."""
    with FlopCounterMode(display=False) as flop, Operations() as operations:
        action()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        action()
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = torch.tensor([event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())])
    peak = int(changes.cumsum(0).max()) if len(events) else 0
    return {
        "GFLOP": flop.get_total_flops() / 1e9,
        "operations": operations.number,
        "peak growth, MiB": peak / 2**20,
    }


def arguments(description: str | None, rounds: int = 3) -> argparse.ArgumentParser:
    """A parser with the options of every benchmark: rounds, record, and the sizes of a workload."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=rounds, help="interleaved timings of each row")
    parser.add_argument("--json", type=Path, help="write the record to this file, too")
    for size in fields(Workload):
        parser.add_argument(f"--{size.name}", type=int, default=size.default)
    return parser


def workload_of(settings: argparse.Namespace) -> Workload:
    """The workload of the command line."""
    return Workload(**{size.name: getattr(settings, size.name) for size in fields(Workload)})


def finish(settings: argparse.Namespace, title: str, tables: Mapping[str, Sequence[Row]]) -> None:
    """Print the tables of a benchmark, and write its record if asked to.

    Args:
        settings: The command line.
        title: What was measured.
        tables: Rows of each table, whose keys are its columns, by what they show.
    """
    record = {
        "title": title,
        "command": " ".join(["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]]),
        "processor": _processor(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "workload": asdict(workload_of(settings)),
        "rounds": settings.rounds,
        "tables": {name: [_rounded(row) for row in rows] for name, rows in tables.items()},
    }
    if settings.json is not None:
        settings.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(as_markdown(record))


def _rounded(row: Row) -> Row:
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}


def read_record(name: str) -> dict[str, Any]:
    """A record of ``benchmarks/records``."""
    record: dict[str, Any] = json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))
    return record


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text(encoding="utf-8").splitlines() if information.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def as_markdown(record: Mapping[str, Any]) -> str:
    """The command of a record, where it ran, and its tables."""
    where = f"{record['processor']}, 1 thread, torch {record['versions']['torch']}, {record['rounds']} rounds"
    tables = [f"{title}:\n\n{_table(rows)}" for title, rows in record["tables"].items()]
    return "\n\n".join([f"`{record['command']}` ({where})", *tables])


def _table(rows: Sequence[Row]) -> str:
    """A Markdown table whose columns are the keys of the rows.

    >>> print(_table([{"step of": "ER", "ms": 430.126, "operations": 1526}]))
    | step of | ms | operations |
    |---|--:|--:|
    | ER | 430.13 | 1,526 |
    """
    cells = [
        [f"{v:,.2f}" if isinstance(v, float) else f"{v:,}" if isinstance(v, int) else v for v in row.values()]
        for row in rows
    ]
    lines = [f"| {' | '.join(line)} |" for line in (list(rows[0]), *cells)]
    return "\n".join([lines[0], f"|---|{'--:|' * (len(rows[0]) - 1)}", *lines[1:]])
