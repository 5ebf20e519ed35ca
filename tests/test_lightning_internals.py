"""Lightning's private names are there. Where one is renamed, an override or a patch would go dead without a word."""

import inspect
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, Timer
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.loggers.csv_logs import ExperimentWriter
from lightning.pytorch.trainer.connectors.checkpoint_connector import _CheckpointConnector
from tiny import Fit, TinySequence, quiet_trainer, small_net

from ddn_lightning import ER, Samples
from ddn_lightning import lightning_internals as internals
from ddn_lightning.cli.fit_command import DDNCommand
from ddn_lightning.runs.curve_logger import _CurveWriter


class Asks(ER):
    """Asks in the middle of a fit."""

    def setup(self, stage: str) -> None:
        super().setup(stage)
        self.answers: dict[str, object] = {"is_resuming": internals.is_resuming(self.trainer)}

    def training_step(self, batch: Samples, batch_index: int) -> object:
        outputs = super().training_step(batch, batch_index)
        if batch_index == 1:
            self.log("seen", 5.0)
            self.answers["batches_logged"] = internals.batches_logged(self.trainer)
            self.answers["batches_fetched"] = internals.batches_fetched(self.trainer)
            self.answers["is_logged"] = internals.is_logged(self.trainer)
            self.answers["values_to_log"] = internals.values_to_log(self.trainer).get("seen")
            self.answers["dump_checkpoint"] = "state_dict" in internals.dump_checkpoint(self.trainer)
            self.trainer.should_stop = True
            internals.drop_old_values(self.trainer)
            self.answers["drop_old_values"] = internals.values_to_log(self.trainer).get("seen")
        return outputs


def test_the_internals_of_a_running_fit_are_found() -> None:
    method = Asks(small_net(), num_classes=6, buffer_size=6)
    assert not internals.has_trainer(method)
    trainer = quiet_trainer(log_every_n_steps=3)
    trainer.fit(method, TinySequence(batch_size=6))
    assert internals.has_trainer(method)
    assert method.answers == {
        "is_resuming": False,
        "batches_logged": 1,
        "batches_fetched": 2,
        "is_logged": False,
        "values_to_log": 5.0,
        "dump_checkpoint": True,
        "drop_old_values": None,
    }


class EstimatesSteps(ER):
    """Makes the loaders before Lightning restores their position."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        assert self.trainer.estimated_stepping_batches > 0
        return torch.optim.SGD(self.parameters(), 0.1)


def test_a_run_resumes_within_its_first_epoch_if_the_steps_were_counted(fit: Fit) -> None:
    def method() -> EstimatesSteps:
        return EstimatesSteps(small_net(), num_classes=6, buffer_size=6)

    fit(method, max_steps=1).trainer.save_checkpoint("stopped.ckpt")
    pairs = zip(fit(method, ckpt_path=Path("stopped.ckpt")).parameters(), fit(method).parameters(), strict=True)
    assert all(torch.equal(resumed, whole) for resumed, whole in pairs)


def test_a_sigterm_that_was_received_is_forgotten() -> None:
    trainer = quiet_trainer()
    trainer._signal_connector.received_sigterm = True
    assert trainer.received_sigterm
    internals.forget_sigterm(trainer)
    assert not trainer.received_sigterm


@pytest.mark.parametrize("sync_batchnorm", [True, False])
def test_a_trainer_says_whether_it_synchronises_batch_norm(sync_batchnorm: bool) -> None:
    trainer = quiet_trainer(strategy="ddp", devices=2, sync_batchnorm=sync_batchnorm)
    assert internals.syncs_batch_norm(trainer) is sync_batchnorm


@pytest.mark.parametrize(("strategy", "has_children"), [("ddp_fork", True), ("ddp", False)])
def test_signals_are_passed_on_where_other_processes_train(strategy: str, has_children: bool) -> None:
    assert (internals.kill_processes_of(quiet_trainer(strategy=strategy, devices=2)) is not None) == has_children


@pytest.mark.parametrize("name", internals.RESTORING)
def test_an_error_while_restoring_is_known_by_the_function_it_comes_from(name: str) -> None:
    assert inspect.isfunction(getattr(_CheckpointConnector, name))


def test_a_fit_names_the_checkpoint_that_it_was_given() -> None:
    assert "ckpt_path" in inspect.signature(Trainer._run).parameters


@pytest.mark.parametrize(
    ("ours", "lightnings", "name"),
    [
        (DDNCommand, LightningCLI, "_parse_ckpt_path"),
        (_CurveWriter, ExperimentWriter, "_check_log_dir_exists"),
        (_CurveWriter, ExperimentWriter, "_rewrite_with_new_header"),
    ],
)
def test_lightning_calls_the_methods_that_are_overridden(ours: type, lightnings: type, name: str) -> None:
    assert name in vars(ours)
    callers = [function for base in lightnings.mro()[:-1] for function in vars(base).values()]
    assert any(name in inspect.getsource(f) for f in callers if inspect.isfunction(f) and f.__name__ != name)


def test_a_checkpoint_is_preloaded_by_a_function_that_lightning_calls_again_without_a_path() -> None:
    assert "checkpoint_path" in inspect.signature(_CheckpointConnector.resume_start).parameters
    connector = quiet_trainer()._checkpoint_connector
    connector._loaded_checkpoint = {"state_dict": {}}
    connector.resume_start(None)
    assert connector._loaded_checkpoint  # what setup has loaded is kept


def test_the_interval_of_a_model_checkpoint_is_found() -> None:
    assert internals.time_interval(ModelCheckpoint(train_time_interval=timedelta(minutes=5))) == timedelta(minutes=5)
    assert internals.time_interval(ModelCheckpoint()) is None


def test_the_duration_of_a_timer_is_found() -> None:
    assert internals.duration_of(Timer(duration={"seconds": 7})) == 7
    assert internals.duration_of(Timer()) is None
