"""How costs grow: with the slots of the memory, with the number of tasks, and with evaluations within tasks."""

import time
import timeit
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.common import PreparedMethod, RandomImages, Row, Workload, arguments, finish, interleaved, workload_of
from ddn_lightning.callbacks.continual_evaluation import AnytimeStatistics, ContinualEvaluation
from ddn_lightning.methods.er import ER
from ddn_lightning.networks.small_net import SmallNet

TEST_IMAGES = 10  # of each class
EVALUATIONS, SOME_IMAGES = 10, 5  # of a sequence of any length, and of each class
EVERY, IMAGES = 10, 100


def watch(owner: object, function: str) -> list[float]:
    """The processor seconds of each call, from now on, of a function of an object."""
    seconds: list[float] = []
    original = getattr(owner, function)

    def timed(*args: Any, **kwargs: Any) -> Any:
        started = time.process_time()
        result = original(*args, **kwargs)
        seconds.append(time.process_time() - started)
        return result

    setattr(owner, function, timed)
    return seconds


def by_memory(workload: Workload, slots: Sequence[int], rounds: int) -> list[Row]:
    """A step of ER, and its part of offering a batch to the memory and drawing one."""
    prepared = {str(size): PreparedMethod(ER, replace(workload, buffer_size=size)) for size in slots}

    def offer_and_draw(of: PreparedMethod) -> None:
        of.method.memory.add(of.batch)
        of.method.draw_memory()

    steps = interleaved({size: of.step for size, of in prepared.items()}, rounds)
    parts = interleaved({size: partial(offer_and_draw, of) for size, of in prepared.items()}, rounds, number=20)
    return [
        {"slots": int(size), "step of ER, ms": 1e3 * min(steps[size]), "offer and draw, ms": 1e3 * min(parts[size])}
        for size in prepared
    ]


def by_tasks(workload: Workload, numbers: Sequence[int], steps: int = 2) -> list[Row]:
    """A fit of a small network with one class a task; also measured after a tenth of the tasks, on fewer images."""
    rows: list[Row] = []
    for number in numbers:
        sized = replace(workload, num_tasks=number, num_classes=number)
        for options in ({}, {"evaluate_every_n_tasks": max(1, number // EVALUATIONS), "images_per_task": SOME_IMAGES}):
            trainer, method = sized.trainer(), sized.method(ER, SmallNet(in_channels=3))
            spent = watch(trainer.fit_loop.epoch_loop.val_loop, "run")
            fit = partial(trainer.fit, method, RandomImages(sized, steps, TEST_IMAGES, **options))
            seconds = timeit.timeit(fit, timer=time.process_time, number=1)
            rows.append(
                {
                    "tasks": number,
                    "evaluations": number // options.get("evaluate_every_n_tasks", 1),
                    "images of a task": options.get("images_per_task", TEST_IMAGES),
                    "CPU s": seconds,
                    "ms a task": 1e3 * seconds / number,
                    "evaluation, %": 100 * sum(spent) / seconds,
                }
            )
    return rows


def by_evaluation(workload: Workload, steps: int) -> list[Row]:
    """A fit of ER with evaluations within tasks."""
    rows: list[Row] = []
    choices: tuple[AnytimeStatistics, ...] = ("running", "memory")
    sized = replace(workload, num_tasks=1)
    for statistics in choices:
        evaluation = ContinualEvaluation(EVERY, IMAGES, statistics=statistics)
        spent = watch(evaluation, "on_train_batch_end")
        trainer = sized.trainer(callbacks=[evaluation], limit_val_batches=0)
        fit = partial(trainer.fit, sized.method(ER), RandomImages(sized, steps, TEST_IMAGES))
        seconds = timeit.timeit(fit, timer=time.process_time, number=1)
        share = 100 * sum(spent) / (seconds - sum(spent))
        rows.append({"BatchNorm statistics": statistics, "% of training": share})
    return rows


def main() -> None:
    """Measure the three."""
    parser = arguments(__doc__)
    parser.add_argument("--slots", nargs="+", type=int, default=[200, 5_000, 50_000])
    parser.add_argument("--tasks", nargs="+", type=int, default=[5, 20, 100])
    parser.add_argument("--steps", type=int, default=42, help="steps of the fit with evaluations within tasks")
    settings = parser.parse_args()
    workload = workload_of(settings)
    tables = {
        "With the memory": by_memory(workload, settings.slots, settings.rounds),
        "With the number of tasks": by_tasks(workload, settings.tasks),
        f"{IMAGES} images every {EVERY} steps": by_evaluation(workload, settings.steps),
    }
    finish(settings, "Growth", tables)


if __name__ == "__main__":
    main()
