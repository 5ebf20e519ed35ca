"""A run that is stopped anywhere and resumed equals an uninterrupted one, bit for bit."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from every_method import COMBINATIONS, SaveAlways, SlowEnding, build
from own_buffers import Backwards, EvenClasses, EverySecond
from tiny import Fit, TinySequence, small_net

from ddn_lightning import ER, CurveLogger, DataDistillNet, LabelDistiller, Memory, ReplayMethod, RingBuffer


def outcome(method: ReplayMethod) -> dict[str, Any]:
    return {
        "weights": method.state_dict(),
        "memory": method.memory.state_dict() if method.memory_draws else None,
        "streams": method.streams.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in method.trainer.optimizers],
        "random": torch.get_rng_state(),
    }


def assert_equal(first: Any, second: Any, where: str = "outcome") -> None:
    if isinstance(first, torch.Tensor):
        assert torch.equal(first.nan_to_num(-1), second.nan_to_num(-1)), where
        assert torch.equal(first.isnan(), second.isnan()), where
    elif isinstance(first, dict):
        assert first.keys() == second.keys(), where
        for key in first:
            assert_equal(first[key], second[key], f"{where}.{key}")
    elif isinstance(first, list):
        assert len(first) == len(second), where
        for index, pair in enumerate(zip(first, second, strict=True)):
            assert_equal(*pair, f"{where}[{index}]")
    else:
        assert first == second, where


def sequence() -> TinySequence:
    """2, 3 and 5 steps per epoch, the last one short: 20 in all; evaluated within tasks as well."""
    per_class = (10, 10, 15, 15, 22, 23)
    return TinySequence(epochs_per_task=2, batch_size=10, per_class=per_class, evaluate_every_n_epochs=1)


def logging_to(folder: Path) -> dict[str, Any]:
    return {"logger": CurveLogger(folder.parent, folder.name, version=""), "log_every_n_steps": 2}


@pytest.mark.parametrize("how_many", [4, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("method_class", "distiller_class"), COMBINATIONS)
def test_resuming_after_any_step_evaluation_or_epoch_changes_nothing(
    fit: Fit,
    method_class: type[ReplayMethod],
    distiller_class: type[LabelDistiller] | None,
    how_many: int | None,
    tmp_path: Path,
) -> None:
    def make() -> ReplayMethod:
        return build(method_class, distiller_class, momentum=0.9)

    saving = {"enable_checkpointing": True, "callbacks": [SaveAlways(tmp_path)]}
    expected = outcome(fit(make, sequence(), **saving, **logging_to(tmp_path / "whole")))
    curves = (tmp_path / "whole" / "metrics.csv").read_text()
    assert len(curves.splitlines()) >= 1 + 10 + 6  # a header, every second step, every epoch's evaluation
    checkpoints = sorted(tmp_path.glob("*.ckpt"))
    assert len(checkpoints) >= 20 + 6 + 6

    ends = ["step4", "step10", "step20"]  # the last batches of tasks, where Lightning skips hooks
    random.Random(method_class.__name__).shuffle(checkpoints)
    checkpoints.sort(key=lambda checkpoint: checkpoint.stem not in ends)
    for checkpoint in checkpoints[:how_many]:
        torch.load(checkpoint, weights_only=True)
        folder = tmp_path / checkpoint.stem
        shutil.copytree(tmp_path / "whole", folder)  # as if killed at the end
        resumed = outcome(fit(make, sequence(), ckpt_path=checkpoint, seed=99, **logging_to(folder)))  # another seed
        assert (folder / "metrics.csv").read_text() == curves, checkpoint.name
        if checkpoint.stem == "epoch5":  # no training is left, so nothing is drawn
            resumed["random"] = expected["random"]
        assert_equal(resumed, expected, checkpoint.name)


def test_a_run_stopped_and_resumed_twice_ends_the_same(fit: Fit, tmp_path: Path) -> None:
    def run(**arguments: Any) -> ReplayMethod:
        return fit(lambda: build(ER, DataDistillNet, momentum=0.9), sequence(), **arguments)

    path: Path | None = None
    for steps in (3, 11):  # within the first task, and within the third
        stopped = run(max_steps=steps, ckpt_path=path)
        path = tmp_path / f"{steps}.ckpt"
        stopped.trainer.save_checkpoint(path)
    assert_equal(outcome(run(ckpt_path=path, seed=99)), outcome(run()))


@pytest.mark.parametrize("precision", ["64-true", "bf16-mixed", "bf16-true"])
def test_a_run_in_another_precision_resumes_without_rounding(fit: Fit, precision: Any, tmp_path: Path) -> None:
    plugin = None if precision == "bf16-true" else DataDistillNet  # which refuses that precision

    def run(**arguments: Any) -> ReplayMethod:
        return fit(lambda: build(ER, plugin, momentum=0.9), sequence(), precision=precision, **arguments)

    stopped, path = run(max_steps=7), tmp_path / "stopped.ckpt"
    stopped.trainer.save_checkpoint(path)
    assert_equal(outcome(run(ckpt_path=path, seed=99)), outcome(run()))


def test_an_interrupted_end_of_task_runs_once(fit: Fit, tmp_path: Path) -> None:
    class Killed(SlowEnding):
        def end_task(self) -> None:
            super().end_task()
            if self.task == 1:
                raise KeyboardInterrupt

    Killed.__name__ = "SlowEnding"
    expected = outcome(fit(lambda: build(SlowEnding), sequence()))
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        fit(lambda: build(Killed), sequence(), enable_checkpointing=True, callbacks=[SaveAlways(tmp_path)])
    resumed = fit(lambda: build(SlowEnding), sequence(), ckpt_path=tmp_path / "step10.ckpt")  # the second task's last
    assert resumed.endings[:3].tolist() == [1, 1, 1]
    assert_equal(outcome(resumed), expected)


@pytest.mark.parametrize("make_memory", [RingBuffer, Backwards, EverySecond, EvenClasses])
def test_a_memory_whose_slots_fill_in_any_order_resumes(
    fit: Fit, make_memory: Callable[[], Memory], tmp_path: Path
) -> None:
    def trained(**arguments: Any) -> ReplayMethod:
        data = TinySequence(batch_size=6, class_order_seed=1)
        return fit(lambda: ER(small_net(), num_classes=6, buffer_size=30, memory=make_memory()), data, **arguments)

    whole = trained(enable_checkpointing=True, callbacks=[SaveAlways(tmp_path)])
    for stop in (1, 5):  # with empty slots before filled ones
        assert_equal(outcome(trained(ckpt_path=tmp_path / f"step{stop}.ckpt", seed=9)), outcome(whole))
