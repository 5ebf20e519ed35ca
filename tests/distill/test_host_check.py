"""A distiller refuses a method without replayed labels before training."""

from pathlib import Path
from typing import Any

import pytest
import torch
from every_method import METHODS, build
from lightning.pytorch import Callback, Trainer
from tiny import Fit, MakeTrainer, TinySequence

from ddn_lightning import ER, ConfigurationError, DataDistillNet, ReplayLoss, ReplayMethod, Samples, cross_entropy
from ddn_lightning.cli import main
from ddn_lightning.distill.label_distiller import _trial_loss, check_host

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
A_GEM = """
from dataclasses import replace
from ddn_lightning import ReplayLoss, ReplayMethod, Samples, cross_entropy

class OwnAGEM(ReplayMethod):
    replay_from_task = 2

    def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
        loss = self.current_loss(current)
        return replace(loss, deferred_terms=(lambda: cross_entropy(self(memory[0].images), memory[0]),))
"""


class WithoutLabels(ReplayMethod):
    """Like A-GEM, which uses the memory's gradient as a constraint, not as a term of the loss."""

    replay_from_task = 2

    def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
        return self.current_loss(current).with_term(lambda: cross_entropy(self(memory[0].images), memory[0]))


def test_a_method_that_replays_late_is_refused_before_it_trains(make_trainer: MakeTrainer) -> None:
    method = build(WithoutLabels, DataDistillNet)
    with pytest.raises(ConfigurationError, match="WithoutLabels cannot take a distiller: its loss has no labels"):
        make_trainer().fit(method, TinySequence(batch_size=6))
    assert method.task == -1


def test_the_command_refuses_such_a_method_without_a_run_folder(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a_gem_of_a_user.py").write_text(A_GEM)
    options = ["--model", "a_gem_of_a_user.OwnAGEM", "--model.distiller", "DataDistillNet"]
    assert main(["fit", "-c", str(QUICKSTART), "--trainer.enable_progress_bar=false", *options]) == 2
    assert "error: OwnAGEM cannot take a distiller" in capsys.readouterr().err
    assert not list(Path("runs").glob("*"))


class UntrainedError(Exception):
    """Stops before training."""


@pytest.mark.parametrize("host", [method for method in METHODS if method.takes_distiller()])
def test_the_check_computes_the_loss_of_every_method(make_trainer: MakeTrainer, host: type[ReplayMethod]) -> None:
    """If the loss raised, the check would accept any method."""

    class Trial(Callback):
        def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
            loss = _trial_loss(pl_module)
            assert loss.memory_logits is not None
            assert loss.memory_logits.isfinite().all()
            raise UntrainedError

    with pytest.raises(UntrainedError):
        make_trainer(callbacks=[Trial()]).fit(build(host, DataDistillNet), TinySequence(batch_size=6))


def test_a_loss_that_only_training_can_compute_is_not_refused(fit: Fit) -> None:
    class Late(ER):
        def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
            assert self.trainer.global_step, "training has not begun"
            self.log("train/drawn", float(len(memory[0])))
            return super().loss(current, *memory)

    assert fit(lambda: build(Late, DataDistillNet), log_every_n_steps=1).tasks_finished == 3


def test_the_check_changes_nothing(make_trainer: MakeTrainer) -> None:
    """Neither the method nor its random streams change, whatever its loss does."""

    class Clumsy(ER):
        def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
            self.train()
            torch.rand(3)
            torch.rand(3, generator=self.streams["augment"])
            self.is_seen_class.fill_(True)
            self.log("train/drawn", 1.0)
            loss = super().loss(current, *memory)
            loss.total.backward()
            tried.append(True)
            return loss

    class Watch(Clumsy):
        def on_fit_start(self) -> None:
            super().on_fit_start()
            tried.clear()
            before = {name: value.clone() for name, value in self.state_dict().items() if torch.is_tensor(value)}
            positions = torch.get_rng_state(), self.streams["augment"].get_state()
            check_host(self)
            assert torch.equal(torch.get_rng_state(), positions[0])
            assert torch.equal(self.streams["augment"].get_state(), positions[1])
            assert all(torch.equal(before[name].nan_to_num(), self.state_dict()[name].nan_to_num()) for name in before)
            assert all(parameter.grad is None for parameter in self.parameters())
            raise UntrainedError

    tried: list[bool] = []
    with pytest.raises(UntrainedError):
        make_trainer().fit(build(Watch, DataDistillNet), TinySequence(batch_size=6))
    assert tried == [True]
