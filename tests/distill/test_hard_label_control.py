"""The controls of equal rehearsal and equal cost, for every replay method."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from every_method import METHODS, build
from test_resume import assert_equal, logging_to, outcome, sequence
from tiny import Fit, MakeTrainer
from torch import Tensor

from ddn_lightning import (
    ER,
    ConfigurationError,
    DataDistillNet,
    DERPlusPlus,
    ICaRL,
    Joint,
    LastCheckpoint,
    ReplayLoss,
    ReplayMethod,
    Samples,
    cross_entropy,
)

HOSTS = [method for method in METHODS if method.takes_distiller() and method.__module__.startswith("ddn_lightning.")]


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_a_plug_in_and_its_control_at_once_are_noted(
    fit: Fit, weight: float, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(lambda: build(ER, DataDistillNet, old_memory_weight=weight), sequence(), max_steps=1)
    noted = "note: old_memory_weight = 1.0 beside DataDistillNet: both draw old memory" in capsys.readouterr().err
    assert noted == bool(weight)


@pytest.mark.parametrize("host", HOSTS)
def test_hard_labels_on_old_memory_are_one_more_term_of_any_loss(host: type[ReplayMethod], fit: Fit) -> None:
    class ByHand(host):  # type: ignore[valid-type,misc]
        def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
            loss = super().loss(current, *memory)
            old = self.draw_memory(self.old_tasks, self.streams["old memory"])
            if old is None:
                return loss
            return replace(loss, other=loss.other + 0.5 * cross_entropy(self(old.images), old))

    precise = {"precision": "64-true", "max_steps": 14}  # two tasks and a step of the third
    method = fit(lambda: build(host, old_memory_weight=0.5), sequence(), **precise)
    by_hand = fit(lambda: build(ByHand), sequence(), **precise)
    without = fit(lambda: build(host), sequence(), **precise)
    assert not torch.allclose(method.head.weight, without.head.weight)
    for (name, given), expected in zip(method.named_parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(given, expected, rtol=1e-7, atol=1e-9, msg=name)


@pytest.mark.parametrize("host", [ER, DERPlusPlus, Joint])
def test_two_steps_on_a_batch_are_two_training_steps_with_fresh_draws(host: type[ReplayMethod], fit: Fit) -> None:
    class Twice(host):  # type: ignore[valid-type,misc]
        def training_step(self, batch: Samples, batch_index: int) -> dict[str, Tensor]:
            super().training_step(batch, batch_index)
            outputs: dict[str, Tensor] = super().training_step(batch, batch_index)
            return outputs

    method = fit(lambda: build(host, replay_steps=2, momentum=0.9), sequence())
    twice = fit(lambda: build(Twice, momentum=0.9), sequence())
    assert_equal(outcome(method), outcome(twice))
    once = fit(lambda: build(host, momentum=0.9), sequence())
    assert method.trainer.global_step == 2 * once.trainer.global_step


def test_curves_count_batches_however_many_steps_each_takes(fit: Fit, tmp_path: Path) -> None:
    steps = []
    for number in (1, 2):
        folder = tmp_path / str(number)
        fit(lambda number=number: build(ER, replay_steps=number), sequence(), **logging_to(folder))  # type: ignore[misc]
        rows = [line.split(",") for line in (folder / "metrics.csv").read_text().splitlines()]
        steps.append([row[rows[0].index("step")] for row in rows])
    assert steps[0] == steps[1]


@pytest.mark.parametrize("batches", [3, 4, 7])  # in an epoch, and at the ends of a task and an epoch
def test_a_run_of_several_steps_per_batch_resumes_exactly(batches: int, fit: Fit, tmp_path: Path) -> None:
    def run(name: str, **arguments: Any) -> ReplayMethod:
        saving = {"enable_checkpointing": True, "callbacks": [LastCheckpoint(tmp_path)], **logging_to(tmp_path / name)}
        return fit(lambda: build(ER, replay_steps=2, momentum=0.9), sequence(), **saving, **arguments)

    expected = outcome(run("whole"))
    (tmp_path / "last.ckpt").unlink()
    run("stopped", max_steps=2 * batches)
    assert_equal(outcome(run("stopped", ckpt_path=tmp_path / "last.ckpt")), expected)
    curves = [(tmp_path / name / "metrics.csv").read_text() for name in ("whole", "stopped")]
    assert curves[0] == curves[1]


@pytest.mark.parametrize("method", [ICaRL, Joint])
def test_old_memory_weight_is_refused_by_methods_without_replay(method: type[ReplayMethod]) -> None:
    with pytest.raises(ConfigurationError, match=f"{method.__name__} cannot take old_memory_weight = 0.5"):
        build(method, old_memory_weight=0.5)


@pytest.mark.parametrize("options", [{"replay_steps": 0}, {"old_memory_weight": -1.0}])
def test_impossible_controls_are_refused(options: dict[str, Any], make_trainer: MakeTrainer) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        build(ER, **options)
