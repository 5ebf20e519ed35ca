"""Trainer options and callbacks that do not work with a task sequence are refused before anything changes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from every_method import SaveAlways, build
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    EarlyStopping,
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy, Strategy
from lightning.pytorch.tuner import Tuner
from tiny import Fit, MakeTrainer, TinySequence, small_net

from ddn_lightning import ER, ERACE, ConfigurationError, DataDistillNet, ICaRL, LabelSmoothing, ReplayMethod
from ddn_lightning.cli import main
from ddn_lightning.core.trainer_checks import check_trainer

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"


def state_of(method: ReplayMethod) -> dict[str, Any]:
    """All tensors and the progress."""
    tensors = {name: value.clone() for name, value in method.state_dict().items() if torch.is_tensor(value)}
    return {**tensors, "clock": (method.task, method.tasks_finished)}


def assert_unchanged(method: ReplayMethod, before: dict[str, Any]) -> None:
    now = state_of(method)
    assert now.pop("clock") == before["clock"]
    for name, value in now.items():
        assert torch.equal(value.nan_to_num(), before[name].nan_to_num()), name


@pytest.mark.parametrize(
    ("callback", "reason"),
    [
        (EMAWeightAveraging(), "not see its weights.*evaluate_average"),
        (StochasticWeightAveraging(swa_lrs=0.1), "after the last evaluation.*evaluate_average"),
        (EarlyStopping(monitor="val/average_accuracy"), "before the later tasks: choose epochs_per_task"),
        (GradientAccumulationScheduler({0: 2}), "raise batch_size"),
    ],
)
def test_callbacks_that_cannot_follow_a_sequence_are_refused(
    make_trainer: MakeTrainer, callback: Callback, reason: str
) -> None:
    method = build(ER)
    before = state_of(method)
    with pytest.raises(ConfigurationError, match=f"must not contain {type(callback).__name__}: .*{reason}"):
        make_trainer(callbacks=[callback]).fit(method, TinySequence())
    assert_unchanged(method, before)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            {"gradient_clip_val": 0.5},
            r"gradient_clip_val must be left out, got 0.5.*gradient_clip_val=0.5 .*--model.gradient_clip_val 0.5\)$",
        ),
        ({"accumulate_grad_batches": 4}, "accumulate_grad_batches must be 1, got 4.*raise batch_size"),
        ({"check_val_every_n_epoch": 2}, "check_val_every_n_epoch must be left out, got 2.*evaluate_every_n_epochs"),
    ],
)
def test_ignored_options_are_refused(make_trainer: MakeTrainer, arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        make_trainer(**arguments).fit(build(ER), TinySequence(epochs_per_task=3))


def test_the_evaluation_interval_of_the_sequence_is_accepted(fit: Fit) -> None:
    assert fit(lambda: build(ER), TinySequence(epochs_per_task=2), check_val_every_n_epoch=2).tasks_finished == 3


def test_the_tuner_is_refused_and_changes_nothing(make_trainer: MakeTrainer) -> None:
    method = build(ER, lr=0.07)
    before = state_of(method)
    sequence = TinySequence(batch_size=6)
    with pytest.raises(ConfigurationError, match="must not contain LearningRateFinder: .*runs with different lr"):
        Tuner(make_trainer()).lr_find(method, datamodule=sequence)
    with pytest.raises(ConfigurationError, match="must not contain BatchSizeFinder: .*choose batch_size"):
        Tuner(make_trainer()).scale_batch_size(method, datamodule=sequence)
    assert (method.lr, sequence.batch_size) == (0.07, 6)
    assert_unchanged(method, before)


def test_a_checkpoint_that_compares_tasks_is_refused(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    checkpoint = ModelCheckpoint(tmp_path, monitor="average_accuracy", mode="max")
    trainer = make_trainer(callbacks=[checkpoint], enable_checkpointing=True)
    with pytest.raises(ConfigurationError, match="monitor='average_accuracy'.*may keep that of task 1 as the best"):
        trainer.fit(build(ER), TinySequence(batch_size=12))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("strategy", [FSDPStrategy, DeepSpeedStrategy, ModelParallelStrategy])
def test_strategies_that_shard_the_weights_are_refused(make_trainer: MakeTrainer, strategy: type[Strategy]) -> None:
    trainer = make_trainer()
    trainer.strategy.__class__ = strategy  # one of its own needs GPUs or another package
    with pytest.raises(ConfigurationError, match=f"^strategy must be auto, ddp or .*, got {strategy.__name__}: .*$"):
        check_trainer(trainer)


@pytest.mark.parametrize("max_time", [{}, "00:00:00:00", {"hours": -2}])
def test_a_max_time_that_is_not_positive_is_refused(make_trainer: MakeTrainer, max_time: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^max_time must be positive, got (0|-7200) s$"):
        make_trainer(max_time=max_time).fit(build(ER), TinySequence())


def test_a_max_time_is_accepted(fit: Fit) -> None:
    assert fit(lambda: build(ER), max_time={"days": 1}).tasks_finished == 3


def test_the_command_refuses_such_a_callback_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    stopping = ["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=train/loss"]
    assert main(["fit", "-c", str(QUICKSTART), "--trainer.enable_progress_bar=false", *stopping]) == 2
    assert capsys.readouterr().err.startswith("error: callbacks must not contain EarlyStopping: ")
    assert not list(Path("runs").glob("*"))


@pytest.mark.parametrize("method_class", [ER, ERACE, ICaRL])
def test_a_second_fit_is_refused_and_changes_nothing(
    make_trainer: MakeTrainer, method_class: type[ReplayMethod]
) -> None:
    method = build(method_class)
    make_trainer(max_steps=6).fit(method, TinySequence(batch_size=6))  # as after an interruption
    before, kept, lr = state_of(method), method.stored_samples, method.lr
    assert kept is not None
    labels = kept.labels.clone()
    with pytest.raises(ConfigurationError, match="been trained already, up to task 2.*make a new method.*ckpt_path"):
        make_trainer().fit(method, TinySequence(batch_size=6))
    assert_unchanged(method, before)
    assert method.stored_samples is kept
    assert torch.equal(kept.labels, labels)
    assert method.lr == lr


def test_a_fit_of_a_loaded_method_is_refused(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    trainer = make_trainer()
    trainer.fit(build(ER, backbone=small_net()), TinySequence(batch_size=12))
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    loaded = ER.load_from_checkpoint(tmp_path / "run.ckpt", backbone=small_net())
    with pytest.raises(ConfigurationError, match="this ER has been trained already, up to task 3"):
        make_trainer().fit(loaded, TinySequence(batch_size=12))


@pytest.mark.parametrize("method_class", [ER, ERACE, ICaRL])
def test_a_trained_method_can_resume_from_an_earlier_checkpoint(
    fit: Fit, make_trainer: MakeTrainer, tmp_path: Path, method_class: type[ReplayMethod]
) -> None:
    saving = SaveAlways(tmp_path)
    method = fit(lambda: build(method_class), enable_checkpointing=True, callbacks=[saving])
    before = state_of(method)
    assert method.stored_samples is not None
    labels = method.stored_samples.labels.clone()
    make_trainer().fit(method, TinySequence(batch_size=6), ckpt_path=tmp_path / "step6.ckpt")
    assert_unchanged(method, before)
    assert torch.equal(method.stored_samples.labels, labels)


def test_evaluation_before_training_does_not_count_as_training(make_trainer: MakeTrainer) -> None:
    method = build(ER)
    make_trainer().validate(method, TinySequence(), verbose=False)
    make_trainer().fit(method, TinySequence(batch_size=12))
    assert method.tasks_finished == 3


class OwnAdamW(ER):
    """Overrides the optimizer with two parameter groups."""

    def configure_optimizers(self) -> Any:
        groups = [{"params": self.backbone.parameters(), "lr": 1e-4}, {"params": self.head.parameters()}]
        return torch.optim.AdamW(groups, lr=2e-3, weight_decay=0.3)


def test_an_overridden_optimizer_is_used_unchanged(make_trainer: MakeTrainer) -> None:
    method = build(OwnAdamW)
    trainer = make_trainer(max_steps=3)
    trainer.fit(method, TinySequence(batch_size=6))
    groups = trainer.optimizers[0].param_groups
    assert [(group["lr"], group["weight_decay"]) for group in groups] == [(1e-4, 0.3), (2e-3, 0.3)]
    assert all("momentum" not in group for group in groups)
    assert method.current_lr == 1e-4


@pytest.mark.filterwarnings("ignore:.*returned `None`, this fit will run with no optimizer")
@pytest.mark.parametrize("kind", [torch.optim.LBFGS, None])
def test_an_optimizer_that_needs_a_closure_is_refused(
    make_trainer: MakeTrainer, kind: type[torch.optim.Optimizer] | None
) -> None:
    class Own(ER):
        def configure_optimizers(self) -> Any:
            return None if kind is None else kind(self.parameters())  # type: ignore[call-arg]

    with pytest.raises(
        ConfigurationError, match="must return an optimizer that steps without a closure.*got (LBF|none)"
    ):
        make_trainer().fit(build(Own), TinySequence(batch_size=6))


def test_a_group_that_a_callback_adds_keeps_its_learning_rate(fit: Fit) -> None:
    rates = []

    class Watch(Callback):
        def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
            rates.append([group["lr"] for group in trainer.optimizers[0].param_groups])

    finetuning = BackboneFinetuning(
        unfreeze_backbone_at_epoch=1, backbone_initial_lr=1e-3, lambda_func=lambda epoch: 1.0, train_bn=False
    )
    fit(lambda: build(ER, lr=0.05), TinySequence(batch_size=24), callbacks=[finetuning, Watch()])
    assert rates == [[0.05], [0.05, 1e-3], [0.05, 1e-3]]


def sgd_with(**arguments: Any) -> type[ER]:
    class OwnSGD(ER):
        def configure_optimizers(self) -> Any:
            groups = [{"params": self.backbone.parameters()}, {"params": self.head.parameters(), **arguments}]
            return torch.optim.SGD(groups, lr=0.1)

    return OwnSGD


@pytest.mark.parametrize(
    ("host", "message"),
    [
        (OwnAdamW, "DataDistillNet needs SGD as the classifier's optimizer, .*virtual step.* got AdamW"),
        (sgd_with(lr=0.2), r"DataDistillNet needs one learning rate.* got \[0.1, 0.2\]"),
        (sgd_with(), r"two optimizers with DataDistillNet.* self.distiller.configure_optimizer\(\), got one"),
    ],
)
def test_optimizers_unlike_the_virtual_step_are_refused(
    make_trainer: MakeTrainer, host: type[ReplayMethod], message: str
) -> None:
    method = build(host, DataDistillNet)
    with pytest.raises(ConfigurationError, match=message):
        make_trainer().fit(method, TinySequence(batch_size=6))
    assert method.task == -1


def test_labels_that_are_not_learned_go_with_any_optimizer(fit: Fit) -> None:
    assert fit(lambda: build(OwnAdamW, LabelSmoothing)).tasks_finished == 3


def test_milestones_that_would_be_ignored_are_refused(make_trainer: MakeTrainer) -> None:
    with pytest.raises(ConfigurationError, match=r"lr_milestones must be left out.*got \(1,\)"):
        make_trainer().fit(build(OwnAdamW, lr_milestones=[1]), TinySequence())


def test_torchscript_is_refused_with_what_to_use_instead() -> None:
    method = build(ER).eval()
    with pytest.raises(ConfigurationError, match=r"use method.export\('model.pt2'\)$"):
        method.to_torchscript()
