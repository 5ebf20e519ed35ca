"""A run with a validation split is measured on it; the test images are opened once, after the last task, or never."""

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from every_method import SaveAlways, build
from test_resume import assert_equal, logging_to, outcome
from tiny import BatchNormNet, Fit, MakeTrainer, TinySequence, small_net
from torch import Tensor

from ddn_lightning import (
    ER,
    ClosedTestSetError,
    ConfigurationError,
    Forgetting,
    FrozenFeatures,
    ReplayMethod,
    Samples,
    TaskLoader,
    TaskSequence,
)

SPLIT: dict[str, Any] = {"validation_per_class": 3, "batch_size": 6}


class Noting(ER):
    """Notes the images that it predicts, and whether the last row of the matrix was known by then."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.predicted: dict[bool, list[Tensor]] = {False: [], True: []}

    def validation_step(self, batch: Samples, batch_index: int) -> Tensor:
        self.predicted[bool(self.accuracy_matrix[-1].isfinite().all())] += batch.images.flatten(1).int().unbind()
        return super().validation_step(batch, batch_index)


def er() -> ReplayMethod:
    return build(ER, backbone=small_net())


def pixels(images: Any) -> set[tuple[int, ...]]:
    return {tuple(image.tolist()) for image in images}


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[TaskLoader]:
    """The loaders of test images that were made."""
    made: list[TaskLoader] = []
    test_dataloader = TaskSequence.test_dataloader

    def counted(sequence: TaskSequence) -> TaskLoader:
        made.append(test_dataloader(sequence))
        return made[-1]

    monkeypatch.setattr(TaskSequence, "test_dataloader", counted)
    return made


def test_a_fit_predicts_validation_images_and_each_test_image_once_at_the_end(fit: Fit) -> None:
    method = fit(lambda: build(Noting, backbone=small_net()), TinySequence(**SPLIT))
    assert isinstance(method, Noting)
    sequence = method.sequence
    assert pixels(method.predicted[False]) == pixels(sequence.val_set.images.flatten(1))
    assert len(method.predicted[True]) == len(sequence.test_set)
    assert pixels(method.predicted[True]) == pixels(sequence.test_set.images.flatten(1))
    assert pixels(sequence.val_set.images.flatten(1)) <= pixels(sequence.load(train=True)[0].flatten(1))


def test_the_accuracies_at_the_end_are_those_of_trainer_test(fit: Fit, make_trainer: MakeTrainer) -> None:
    calibrated = Forgetting(statistics="both")
    method = fit(lambda: build(ER, backbone=BatchNormNet()), TinySequence(**SPLIT), callbacks=[calibrated])
    measured = make_trainer(callbacks=[calibrated]).test(method, method.sequence, verbose=False)[0]
    assert method.test_accuracy.keys() == {"class_il", "task_il", "calibrated"}
    for kind, prefix in (("class_il", "test"), ("calibrated", "test/calibrated")):
        assert method.test_accuracy[kind] == [measured[f"{prefix}/accuracy/task_{task}"] for task in (1, 2, 3)]


def test_training_is_not_changed_by_how_the_test_images_are_treated(fit: Fit) -> None:
    open_run, closed = (fit(er, TinySequence(**SPLIT, closed_test=is_closed)) for is_closed in (False, True))
    assert (bool(open_run.test_accuracy), closed.test_accuracy) == (True, {})
    expected = dict(open_run.state_dict())
    del expected["_extra_state"]["progress"]["test_accuracy"]
    assert_equal(dict(closed.state_dict()), expected)


def test_peeking_raises_while_the_test_images_are_closed(
    fit: Fit, make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = fit(er, TinySequence(**SPLIT, closed_test=True))
    with pytest.raises(ClosedTestSetError):
        make_trainer().test(method, method.sequence)
    monkeypatch.setattr(TaskSequence, "val_dataloader", TaskSequence.test_dataloader)
    with pytest.raises(ClosedTestSetError):
        fit(er, TinySequence(**SPLIT, closed_test=True))


@pytest.mark.parametrize("ending", ["step7", "step18", "evaluated5", "epoch5"])
def test_a_resumed_run_opens_the_test_images_unless_it_has(
    fit: Fit, ending: str, tmp_path: Path, opened: list[TaskLoader]
) -> None:
    def run(folder: Path, **arguments: Any) -> ReplayMethod:
        return fit(er, TinySequence(**SPLIT, epochs_per_task=2), **logging_to(folder), **arguments)

    whole = run(tmp_path / "whole", enable_checkpointing=True, callbacks=[SaveAlways(tmp_path)])
    assert len(opened) == 1
    opened.clear()
    resumed = run(tmp_path / "whole", ckpt_path=tmp_path / f"{ending}.ckpt", seed=99)
    assert len(opened) == (ending != "epoch5")
    expected = outcome(whole)
    expected["random"] = outcome(resumed)["random"] if ending == "epoch5" else expected["random"]
    assert_equal(outcome(resumed), expected)
    with open(tmp_path / "whole" / "metrics.csv", newline="") as file:
        assert sum(bool(row["test/average_accuracy"]) for row in csv.DictReader(file)) == 1


def test_a_closed_run_that_is_resumed_open_opens_the_test_images(
    fit: Fit, tmp_path: Path, opened: list[TaskLoader]
) -> None:
    closed = fit(er, TinySequence(**SPLIT, closed_test=True))
    assert not opened
    closed.trainer.save_checkpoint(tmp_path / "closed.ckpt")
    again = fit(er, TinySequence(**SPLIT), ckpt_path=tmp_path / "closed.ckpt")
    assert len(opened) == 1
    assert again.test_accuracy == fit(er, TinySequence(**SPLIT)).test_accuracy


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_two_ranks_hold_out_the_same_images_and_open_the_test_images_together(fit: Fit) -> None:
    def trained(**arguments: Any) -> ReplayMethod:
        return fit(lambda: build(ER, backbone=small_net()).double(), TinySequence(**SPLIT), **arguments)

    one, two = trained(), trained(devices=2, strategy="ddp_fork")
    assert torch.equal(one.accuracy_matrix.nan_to_num(), two.accuracy_matrix.nan_to_num())
    assert one.test_accuracy == two.test_accuracy
    assert one.test_accuracy


@pytest.mark.parametrize("other", [{}, {"validation_per_class": 2}, {"validation_per_class": 3, "validation_seed": 1}])
def test_neither_a_resume_nor_a_validation_takes_other_images(
    fit: Fit, make_trainer: MakeTrainer, tmp_path: Path, other: dict[str, Any]
) -> None:
    path = tmp_path / "stopped.ckpt"
    stopped = fit(er, TinySequence(**SPLIT), max_steps=4)
    stopped.trainer.save_checkpoint(path)
    with pytest.raises(ConfigurationError, match="validation must be that of the checkpoint, {'share': None"):
        fit(er, TinySequence(batch_size=6, **other), ckpt_path=path)
    with pytest.raises(ConfigurationError, match="validation must be that of the checkpoint, {'share': None"):
        make_trainer().validate(er(), TinySequence(batch_size=6, **other), ckpt_path=path, verbose=False)
    make_trainer().test(er(), TinySequence(batch_size=6, **other), ckpt_path=path, verbose=False)


def test_frozen_features_of_the_test_images_are_computed_when_they_are_opened(fit: Fit) -> None:
    class Plain(TinySequence):
        padding, flip = 0, False

    seen: list[int] = []

    class Counting(BatchNormNet):
        def forward(self, images: Tensor) -> Tensor:
            seen.append(len(images))
            return super().forward(images)

    method = fit(lambda: build(ER, backbone=FrozenFeatures(Counting())), Plain(**SPLIT, eval_batch_size=100))
    assert seen == [1, 54, 18, 72]  # the trial of the shape, training, validation, and the test images at last
    assert method.test_accuracy
