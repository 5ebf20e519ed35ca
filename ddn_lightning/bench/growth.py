"""How the cost of a step grows with the memory, the classes, the batch and the number of devices."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from ddn_lightning.bench.loops import StepTimes
from ddn_lightning.bench.stopwatch import Clock, Timing, interleaved
from ddn_lightning.bench.subject import RandomImages, Subject, Workload, quiet_trainer
from ddn_lightning.distill.data_distill_net import DataDistillNet
from ddn_lightning.methods.er import ER
from ddn_lightning.networks.resnet18 import ResNet18

AXES = {"buffer_size": (200, 5_000, 50_000), "num_classes": (10, 100, 200), "batch": (16, 32, 64)}
RANKS = (1, 2)
STEPS_OF_RANKS = 6


@dataclass(frozen=True)
class Grown:
    """The cost of a step for one value of what grows.

    Args:
        axis: What grows.
        value: Its value.
        er: A step of ER.
        ddn: A step of ER with DDN.
    """

    axis: str
    value: int
    er: Timing
    ddn: Timing


def number_of_actions(rounds: int) -> int:
    """How often ``done`` is called by :func:`growth`."""
    return 2 * (rounds + 1) * sum(map(len, AXES.values())) + 2 * len(RANKS)


def growth(workload: Workload, rounds: int, clock: Clock, done: Callable[[], None]) -> Iterator[Grown]:
    """Time steps along each axis, one axis after another; on a CPU also with two processes."""
    for axis, values in AXES.items():
        subjects = {}
        for value in values:
            size = replace(workload, **{axis: value})  # type: ignore[arg-type]  # all of them are integers
            subjects[f"er {value}"] = Subject(ER, size)
            subjects[f"ddn {value}"] = Subject(ER, size, DataDistillNet())
        timings = interleaved({name: subject.step for name, subject in subjects.items()}, rounds, clock, done)
        for value in values:
            yield Grown(axis, value, timings[f"er {value}"], timings[f"ddn {value}"])
    if workload.device.type == "cpu":
        for ranks in RANKS:
            timings = {}
            for name, distiller in (("er", None), ("ddn", DataDistillNet())):
                timings[name] = _time_ranks(ER(*_sizes(workload), distiller=distiller), workload, ranks, clock)
                done()
            yield Grown("devices", ranks, timings["er"], timings["ddn"])


def _sizes(workload: Workload) -> tuple[Any, ...]:
    return ResNet18(width=workload.width), workload.num_classes, workload.buffer_size, workload.batch


def _time_ranks(method: ER, workload: Workload, ranks: int, clock: Clock) -> Timing:
    """What a step takes of the first of several processes that share each batch."""
    with TemporaryDirectory() as folder:
        watch = _WrittenTimes(clock, Path(folder) / "seconds.json")
        strategy = "auto" if ranks == 1 else "ddp_fork"
        trainer = quiet_trainer(workload, callbacks=[watch], devices=ranks, strategy=strategy)
        trainer.fit(method, RandomImages(workload, STEPS_OF_RANKS))
        return Timing(tuple(json.loads(watch.path.read_text())[STEPS_OF_RANKS:]))  # those of the second task


class _WrittenTimes(StepTimes):
    """Writes the times down, as they would not come back from a forked process."""

    def __init__(self, clock: Clock, path: Path) -> None:
        super().__init__(clock)
        self.path = path

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            self.path.write_text(json.dumps(self.seconds))
