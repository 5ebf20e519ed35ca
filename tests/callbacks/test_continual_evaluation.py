"""Continual evaluation measures what it says, disturbs nothing, and does not depend on resumes or ranks."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bit_for_bit import difference
from every_method import METHODS, SaveAlways, build
from lightning.pytorch import Trainer
from test_resume import outcome
from tiny import Fit, TinySequence
from torch import nn

import ddn_lightning
from ddn_lightning import (
    ER,
    SCR,
    BiC,
    ConfigurationError,
    ContinualEvaluation,
    CurveLogger,
    Forgetting,
    ICaRL,
    PermutedPixels,
    ReplayMethod,
)
from ddn_lightning.callbacks.continual_evaluation import AnytimeStatistics
from ddn_lightning.data.balanced_subset import balanced_subset
from ddn_lightning.runs.anytime import AnytimeRecord, Evaluation, parse_anytime, write_anytime

Make = Callable[[], ReplayMethod]
ALL = 72  # test images of the tiny sequence, 12 of each class


class Quick(nn.Sequential):
    """Learns within a few steps, so that accuracies differ."""

    feature_dim = 64

    def __init__(self, has_batch_norm: bool = True) -> None:
        super().__init__(nn.Flatten(), *([nn.BatchNorm1d(64, momentum=0.5)] if has_batch_norm else []))


def quick(method_class: type[ReplayMethod] = ER, backbone: Any = None) -> ReplayMethod:
    return build(method_class, backbone=backbone or Quick(), lr=0.1)


def watched(
    fit: Fit, make: Make, evaluation: ContinualEvaluation, **arguments: Any
) -> tuple[ReplayMethod, list[Evaluation]]:
    method = fit(make, callbacks=[evaluation, *arguments.pop("callbacks", ())], **arguments)
    return method, list(evaluation.record.evaluations)


def plain(evaluations: list[Evaluation]) -> list[tuple[Any, ...]]:
    """As a list that can be compared: nan is not equal to itself."""
    return [(e.step, e.task, e.samples, *(None if v != v else v for v in e.accuracies)) for e in evaluations]


# own methods and variants of ER evaluate as ER does: with the slow tests
EVERY = [m if m in vars(ddn_lightning).values() else pytest.param(m, marks=pytest.mark.slow) for m in METHODS]


@pytest.mark.parametrize("method_class", EVERY)
@pytest.mark.parametrize("statistics", ["memory", pytest.param("running", marks=pytest.mark.slow)])
def test_training_is_the_same_bit_for_bit_with_and_without_it(
    fit: Fit, method_class: type[ReplayMethod], statistics: AnytimeStatistics
) -> None:
    without = outcome(fit(lambda: build(method_class)))
    method, found = watched(fit, lambda: build(method_class), ContinualEvaluation(1, 12, statistics=statistics))
    assert difference(without, outcome(method)) is None
    steps = method.trainer.fit_loop.epoch_loop.batch_progress.total.processed
    assert [e.step for e in found] == list(range(1, steps + 1))  # also at a task's end just once
    assert sorted({e.task for e in found}) == [0, 1, 2]


@pytest.mark.parametrize(
    ("method_class", "statistics"),
    [(ER, "running"), (ER, "memory"), (ER, "both"), (ICaRL, "both"), pytest.param(BiC, "both", marks=pytest.mark.slow)],
)
def test_at_task_ends_on_all_images_it_measures_the_accuracy_matrix(
    fit: Fit, method_class: type[ReplayMethod], statistics: Any
) -> None:
    """So predictions are right, with the statistics of the matrix, and after the work at the task's end."""
    matrix = Forgetting(statistics=statistics)
    make = lambda: quick(method_class)  # noqa: E731
    method, found = watched(fit, make, ContinualEvaluation(2, ALL), callbacks=[matrix])
    ends = {e.task: e.accuracies for e in found}  # the last evaluation of each task
    assert torch.allclose(torch.tensor([*ends.values()]), method.accuracy_matrix, equal_nan=True)
    if method_class is ER:
        assert [e.step for e in found] == [2, 4, 6, 8, 10, 12]
        assert [e.samples for e in found] == [12, 24, 36, 48, 60, 72]
    other, others = watched(fit, make, ContinualEvaluation(None, ALL, statistics="memory"), callbacks=[matrix])
    assert [e.task for e in others] == [0, 1, 2]
    if statistics == "both":
        calibrated = torch.tensor([e.accuracies for e in others])
        assert torch.allclose(calibrated, other.calibrated_accuracy_matrix, equal_nan=True)


def test_within_a_task_it_measures_the_network_of_that_step(fit: Fit) -> None:
    seen: list[float] = []

    class Watch(ContinualEvaluation):
        def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *others: Any) -> None:
            super().on_train_batch_end(trainer, pl_module, *others)
            pl_module.eval()
            samples = pl_module.sequence.test_set
            with torch.no_grad():
                hits = pl_module(pl_module.transform(samples.images)).argmax(1) == samples.labels
            seen.append(100 * float(hits[:24].double().mean()))  # of the first task
            pl_module.train()

    _, found = watched(fit, quick, Watch(1, ALL))
    expected = [value for step, value in enumerate(seen, start=1) if step % 4]
    assert [e.accuracies[0] for e in found if e.step % 4] == pytest.approx(expected)
    assert len(set(expected)) > 2


def test_without_the_trainers_evaluation_task_ends_are_measured_too(fit: Fit) -> None:
    _, found = watched(fit, lambda: quick(ICaRL), ContinualEvaluation(3, 12))
    _, alone = watched(fit, lambda: quick(ICaRL), ContinualEvaluation(3, 12), limit_val_batches=0)
    assert plain(found) == plain(alone)
    assert [e.step for e in alone][:3] == [3, 4, 6]


def sequence() -> TinySequence:
    """2, 3 and 5 steps per epoch, the last one short: 20 in all."""
    return TinySequence(epochs_per_task=2, batch_size=10, per_class=(10, 10, 15, 15, 22, 23))


@pytest.mark.parametrize("method_class", [ER, pytest.param(BiC, marks=pytest.mark.slow)])
def test_a_run_resumed_anywhere_has_the_same_evaluations_and_curves(
    fit: Fit, method_class: type[ReplayMethod], tmp_path: Path
) -> None:
    def run(folder: Path, **arguments: Any) -> list[tuple[Any, ...]]:
        logger = CurveLogger(folder.parent, folder.name, version="")
        evaluation = ContinualEvaluation(3, 12, statistics="memory")
        arguments |= {"sequence": sequence(), "logger": logger, "log_every_n_steps": 2}
        return plain(watched(fit, lambda: quick(method_class), evaluation, **arguments)[1])

    whole = tmp_path / "whole"
    expected = run(whole, enable_checkpointing=True, callbacks=[SaveAlways(tmp_path)])
    curves = (whole / "metrics.csv").read_text()
    assert "anytime/accuracy/task_3" in curves
    assert len({row[3:] for row in expected}) > 4
    # after an evaluation, between two, on a task's last batch before and after its evaluation, and at the end
    for name in ("step3", "step5", "step4", "evaluated1", "step20", "epoch5"):
        folder = tmp_path / name
        shutil.copytree(whole, folder)  # as if killed at the end: it has rows of the future
        assert run(folder, ckpt_path=tmp_path / f"{name}.ckpt", seed=9) == expected, name
        assert (folder / "metrics.csv").read_text() == curves, name


def test_an_interrupted_evaluation_is_run_again(fit: Fit, tmp_path: Path) -> None:
    class Killed(ER):
        def validation_step(self, batch: Any, batch_index: int) -> Any:
            if self.trainer.global_step == 6:
                raise KeyboardInterrupt
            return super().validation_step(batch, batch_index)

    Killed.__name__ = "ER"
    expected, evaluations = watched(fit, quick, ContinualEvaluation(3, 12))
    saving = {"enable_checkpointing": True, "callbacks": [SaveAlways(tmp_path)]}
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        watched(fit, lambda: quick(Killed), ContinualEvaluation(3, 12), **saving)
    assert not (tmp_path / "step6.ckpt").exists()
    resumed, found = watched(fit, quick, ContinualEvaluation(3, 12), ckpt_path=tmp_path / "step5.ckpt")
    assert plain(found) == plain(evaluations)
    assert difference(outcome(expected), outcome(resumed)) is None


class Written(ContinualEvaluation):
    """Writes its evaluations: objects do not come back from forked processes."""

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        write_anytime(Path(f"rank{trainer.global_rank}"), self.record)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_every_rank_measures_what_one_device_does(fit: Fit) -> None:
    def run(**arguments: Any) -> None:
        data = TinySequence(batch_size=5, drop_last=False, eval_batch_size=7)
        fit(lambda: quick(backbone=Quick(False)).double(), data, callbacks=[Written(2, 18)], **arguments)

    run()
    one = Path("rank0/anytime.csv").read_text()
    run(devices=2, strategy="ddp_fork")
    assert [Path(f"rank{rank}/anytime.csv").read_text() for rank in (0, 1)] == [one, one]
    assert len(one.splitlines()) > 8


def test_the_images_are_balanced_and_the_same_for_every_seed_of_the_run() -> None:
    labels = torch.arange(6).repeat_interleave(torch.tensor([9, 9, 9, 9, 9, 2]))
    tasks = labels // 2
    chosen = balanced_subset(labels, tasks, images=25, seed=0)
    assert labels[chosen].bincount().tolist() == [4, 4, 4, 4, 4, 2]  # one class has no more
    assert tasks[chosen].tolist() == sorted(tasks[chosen].tolist())
    assert len(chosen.unique()) == len(chosen)
    torch.manual_seed(5)
    assert balanced_subset(labels, tasks, images=25, seed=0).equal(chosen)
    assert not balanced_subset(labels, tasks, images=25, seed=1).equal(chosen)
    shared = balanced_subset(labels % 2, tasks, images=12, seed=0)  # each class in each task
    assert (tasks * 2 + labels % 2)[shared].bincount().tolist() == [2] * 6


def test_unseen_tasks_are_measured_where_their_classes_are_trained_before(fit: Fit) -> None:
    data = TinySequence(batch_size=12, stream=PermutedPixels())
    evaluation = ContinualEvaluation(3, ALL, unseen_tasks=True)
    method, found = watched(fit, quick, evaluation, sequence=data)
    assert (found[0].step, found[0].task) == (0, -1)
    assert not any(math.isnan(value) for e in found for value in e.accuracies)
    results = evaluation.results(method)
    before = [found[1 + [e.task for e in found[1:]].index(task) - 1] for task in (1, 2)]
    transfer = [e.accuracies[task] - found[0].accuracies[task] for task, e in enumerate(before, start=1)]
    assert results["forward_transfer"] == pytest.approx(sum(transfer) / 2, abs=1e-3)
    with pytest.raises(ConfigurationError, match="unseen_tasks must be false for data whose classes come in one task"):
        watched(fit, lambda: build(ER), ContinualEvaluation(3, 12, unseen_tasks=True))


@pytest.mark.parametrize(("statistics", "calibrating"), [("running", 0), ("memory", 10)])  # 10 stored samples
def test_an_evaluation_forwards_each_image_of_the_tasks_seen_once(
    fit: Fit, statistics: AnytimeStatistics, calibrating: int
) -> None:
    forwarded: list[int] = []

    class Counting(Quick):
        def forward(self, images: Any) -> Any:
            if not self.training:
                forwarded.append(len(images))
            return super().forward(images)

    evaluation = ContinualEvaluation(None, 12, statistics=statistics)
    watched(fit, lambda: quick(backbone=Counting()), evaluation, limit_val_batches=0, sequence=None)
    checked = 1  # the image that the data is checked with
    assert sum(forwarded) == checked + (4 + 8 + 12) + 3 * calibrating


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"every_n_steps": 0}, "every_n_steps must be positive, got 0"),
        ({"images": -1}, "images must be positive, got -1"),
        ({"seed": -1}, "seed must be zero or positive, got -1"),
        ({"statistics": "both"}, "statistics must be one of running, memory, got 'both'"),
    ],
)
def test_bad_options_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ContinualEvaluation(**arguments)


def test_too_few_images_are_refused_before_training(fit: Fit) -> None:
    with pytest.raises(ConfigurationError, match="images must be at least 6, one of each class in each task, got 5"):
        watched(fit, lambda: build(ER), ContinualEvaluation(1, 5))


def test_a_checkpoint_with_other_options_is_refused(fit: Fit) -> None:
    evaluation = ContinualEvaluation(3, 12)
    watched(fit, lambda: build(ER), evaluation)
    state = evaluation.state_dict()
    again = ContinualEvaluation(3, 12)
    again.load_state_dict(state)
    assert plain(list(again.record.evaluations)) == plain(list(evaluation.record.evaluations))
    with pytest.raises(ConfigurationError, match="images of continual evaluation must be that of the checkpoint, 12"):
        ContinualEvaluation(3, 18).load_state_dict(state)


def test_the_file_keeps_every_evaluation(tmp_path: Path) -> None:
    rows = [
        Evaluation(0, -1, 0, (50.0, 25.0)),
        Evaluation(5, 0, 60, (62.5, math.nan)),
        Evaluation(9, 1, 99, (0.0, 100.0)),
    ]
    write_anytime(tmp_path, AnytimeRecord(rows))
    text = (tmp_path / "anytime.csv").read_text()
    assert text.splitlines()[0] == "step,task,samples,average_accuracy,task_1,task_2"
    assert text.splitlines()[2] == "5,1,60,62.5,62.5,"
    record = parse_anytime(text.encode())
    assert plain(list(record.evaluations)) == plain(rows)
    assert record.switches == [5]
    for damaged in ("", "step,task\n1,1\n", text[: text.rindex(",")], text.replace("62.5,62.5", "62.5,inf")):
        with pytest.raises((ValueError, IndexError)):
            parse_anytime(damaged.encode())


def test_class_means_are_those_of_the_moment(fit: Fit) -> None:
    """SCR predicts by means, which are otherwise measured before an evaluation of the Trainer only."""
    _, found = watched(fit, lambda: quick(SCR), ContinualEvaluation(every_n_steps=1, images=ALL))
    within_second = [one.accuracies[1] for one in found if one.task == 1][:-1]  # without the task's end
    assert max(within_second) > 0
