from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from every_method import SlowEnding
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningCLI
from tiny import DropoutNet, Fit, MakeTrainer, TinySequence, small_net
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ddn_lightning import (
    ER,
    ConfigurationError,
    Finetune,
    Forgetting,
    Observations,
    ReplayLoss,
    ReplayMethod,
    ReservoirSampling,
    Samples,
    SmallNet,
    TaskCallback,
)


class Diary(TaskCallback):
    """Records the order of hooks."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_train_batch_end(self, trainer: Trainer, method: Any, *_: Any) -> None:
        self.lines.append(f"batch of {method.task}")

    def on_task_end(self, trainer: Trainer, method: ReplayMethod, task: int) -> None:
        self.lines.append(f"end of {task}")

    def on_validation_end(self, trainer: Trainer, method: Any) -> None:
        self.lines.append(f"evaluation of {method.task}")

    def on_task_exit(self, trainer: Trainer, method: ReplayMethod, task: int) -> None:
        self.lines.append(f"exit of {task}")


def test_the_hooks_of_a_task_run_in_order(fit: Fit) -> None:
    diary = Diary()
    method = fit(lambda: SlowEnding(small_net(), num_classes=6), TinySequence(batch_size=12), callbacks=[diary])
    expected = []
    for task in range(3):
        expected += [f"batch of {task}"] * 2 + [f"end of {task}", f"evaluation of {task}", f"exit of {task}"]
    assert diary.lines == expected
    assert method.endings[:3].tolist() == [1, 1, 1]


def test_an_evaluation_that_misses_a_task_gives_no_accuracy_and_says_so(
    fit: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    data = TinySequence(batch_size=12, eval_batch_size=4)
    method = fit(lambda: ER(small_net(), num_classes=6), data, limit_val_batches=1)
    missing = [task + 1 for task in method.accuracy_matrix[2].isnan().nonzero().flatten().tolist()]
    assert missing
    assert Forgetting().summary(method.accuracy_matrix) == {}
    assert f"no image of the tasks {missing} was measured (limit_val_batches = 1)" in capsys.readouterr().err


def test_stopping_within_a_task_does_not_end_it(fit: Fit) -> None:
    diary = Diary()
    sequence = TinySequence(batch_size=6)  # 4 steps per task
    method = fit(lambda: SlowEnding(small_net(), num_classes=6), sequence, callbacks=[diary], max_steps=6)
    assert method.task == 1
    assert method.tasks_finished == 1
    assert [line for line in diary.lines if "end of" in line] == ["end of 0"]
    assert method.accuracy_matrix[0, 0].isfinite()
    assert method.accuracy_matrix[1].isnan().all()


def test_the_matrix_holds_the_accuracies_of_the_network_at_each_task_end(fit: Fit) -> None:
    """Measured again by hand, from copies of the weights."""
    expected = []

    class Measure(TaskCallback):
        def on_task_end(self, trainer: Trainer, method: ReplayMethod, task: int) -> None:
            method.eval()
            test = method.sequence.test_set
            hits = method(method.sequence.transform(test.images)).argmax(1) == test.labels
            expected.append([100 * hits[test.tasks == t].float().mean().item() for t in range(task + 1)])
            method.train()

    method = fit(lambda: ER(DropoutNet(), num_classes=6), TinySequence(epochs_per_task=3), callbacks=[Measure()])
    for task, row in enumerate(expected):
        assert method.accuracy_matrix[task, : task + 1].tolist() == pytest.approx(row)
        assert method.accuracy_matrix[task, task + 1 :].isnan().all()


def test_the_sanity_check_leaves_no_metrics(make_trainer: MakeTrainer) -> None:
    seen = []

    class Watch(TaskCallback):
        def on_train_start(self, trainer: Trainer, method: Any) -> None:
            seen.append((set(trainer.callback_metrics), method.accuracy_matrix.isnan().all().item()))

    trainer = make_trainer(num_sanity_val_steps=2, callbacks=[Watch()])
    trainer.fit(ER(small_net(), num_classes=6), TinySequence(batch_size=12))
    assert seen == [(set(), True)]


def test_one_seed_gives_one_result_and_another_seed_another(fit: Fit) -> None:
    def weights(seed: int) -> Tensor:
        return fit(lambda: ER(DropoutNet(), num_classes=6), seed=seed).head.weight

    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))


def test_summaries_are_logged(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(log_every_n_steps=1)
    trainer.fit(ER(small_net(), num_classes=6), TinySequence(batch_size=12))
    logged = trainer.callback_metrics
    assert {"train/loss", "average_accuracy", "forgetting", "backward_transfer", "average_anytime_accuracy"} <= set(
        logged
    )
    last_row = torch.stack([logged[f"val/accuracy/task_{task}"] for task in (1, 2, 3)])
    assert torch.allclose(logged["average_accuracy"], last_row.mean())


def test_validate_and_test_measure_without_training(make_trainer: MakeTrainer) -> None:
    method = ER(small_net(), num_classes=6)
    make_trainer().fit(method, TinySequence(batch_size=12))
    (validated,) = make_trainer().validate(method, TinySequence(), verbose=False)
    (tested,) = make_trainer().test(method, TinySequence(), verbose=False)
    for task in range(3):
        expected = pytest.approx(method.accuracy_matrix[-1, task].item())
        assert validated[f"val/accuracy/task_{task + 1}"] == tested[f"test/accuracy/task_{task + 1}"] == expected


def test_predict_gives_classes_with_and_without_a_sequence(make_trainer: MakeTrainer) -> None:
    method, sequence = ER(small_net(), num_classes=6), TinySequence(batch_size=12)
    make_trainer().fit(method, sequence)
    images = sequence.transform(sequence.test_set.images)
    expected = method.eval()(images).argmax(1).tolist()
    by_sequence = make_trainer().predict(method, TinySequence())
    by_loader = make_trainer().predict(method, sequence.test_dataloader())
    assert torch.cat(by_sequence).tolist() == torch.cat(by_loader).tolist() == expected  # type: ignore[arg-type]


def test_task_incremental_accuracy_is_stored_too(fit: Fit) -> None:
    method = fit(lambda: Finetune(small_net(), num_classes=6, lr=0.1), TinySequence(epochs_per_task=5))
    test = method.sequence.test_set
    scores = method.eval()(method.sequence.transform(test.images))
    for task in range(3):
        choices = method.sequence.task_classes[task]
        hits = choices[scores[test.tasks == task][:, choices].argmax(1)] == test.labels[test.tasks == task]
        assert method.task_il_matrix[-1, task].item() == pytest.approx(100 * hits.float().mean().item())


def test_a_parameter_without_a_gradient_in_a_step_does_not_move(fit: Fit) -> None:
    class Sometimes(ER):
        """Has a parameter that only the very first step uses."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.extra = nn.Parameter(torch.ones(()))

        def current_loss(self, current: Samples) -> ReplayLoss:
            loss = super().current_loss(current)
            return replace(loss, other=loss.other * self.extra) if not len(self.memory) else loss

    values = []

    class Watch(TaskCallback):
        def on_train_batch_end(self, trainer: Trainer, method: Any, *_: Any) -> None:
            values.append(method.extra.item())

    fit(lambda: Sometimes(small_net(), num_classes=6), callbacks=[Watch()])
    assert values[0] != 1.0
    assert set(values) == {values[0]}


def test_a_missed_evaluation_leaves_frozen_layers_frozen(make_trainer: MakeTrainer) -> None:
    method = ER(DropoutNet(), num_classes=6)
    trainer = make_trainer()
    trainer.fit(method, TinySequence(batch_size=12))
    method.accuracy_matrix[2] = torch.nan
    method.train()
    method.backbone.layers[1].eval()
    trainer.limit_val_batches = 1.0
    method.progress.record_evaluation(2)  # as after a resume from the last batch
    Forgetting.of(trainer).on_task_exit(trainer, method, 2)
    assert method.accuracy_matrix[2].isfinite().all()
    assert not method.backbone.layers[1].training
    assert method.backbone.layers[0].training


def test_a_single_task_is_a_sequence_too(fit: Fit) -> None:
    method = fit(lambda: ER(small_net(), num_classes=6), TinySequence(num_tasks=1, batch_size=12))
    assert method.accuracy_matrix.shape == (1, 1)
    assert method.accuracy_matrix.isfinite().all()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"name": "other"}, "name must be that of the checkpoint, tiny, got other"),
        ({"epochs_per_task": 2}, "epochs_per_task must be that of the checkpoint, 1, got 2"),
        ({"batch_size": 6}, "batch_size must be that of the checkpoint, 12, got 6"),
        ({"class_order_seed": 3}, "task_classes must be that of the checkpoint"),
        ({"num_tasks": 2}, "task_classes must be that of the checkpoint"),
        ({"drop_last": False}, "drop_last must be that of the checkpoint, True, got False"),
    ],
)
def test_a_checkpoint_of_another_sequence_is_refused(
    make_trainer: MakeTrainer, tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    trainer = make_trainer()
    trainer.fit(Finetune(small_net(), num_classes=6), TinySequence(batch_size=12))
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    other_name = type("Other", (TinySequence,), {"name": changed.pop("name", "tiny")})
    other = other_name(**{"batch_size": 12, **changed})
    with pytest.raises(ConfigurationError, match=message):
        make_trainer().fit(Finetune(small_net(), num_classes=6), other, ckpt_path=tmp_path / "run.ckpt")


def test_given_hyper_parameters_win_over_those_of_a_checkpoint(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    trainer = make_trainer(max_steps=3)
    trainer.fit(Finetune(small_net(), num_classes=6), TinySequence(batch_size=6))
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    given = Finetune(small_net(), num_classes=6, lr=0.5, momentum=0.9, weight_decay=0.1)
    resumed = make_trainer(max_steps=4)
    resumed.fit(given, TinySequence(batch_size=6), ckpt_path=tmp_path / "run.ckpt")
    (group,) = resumed.optimizers[0].param_groups
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.5, 0.9, 0.1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Lightning 2.6.6 on jsonargparse 4.53
def test_a_method_trains_under_a_plain_lightning_cli(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = ["--trainer.max_epochs=-1", "--trainer.accelerator=cpu", *(f"--trainer.{name}=false" for name in names)]
    options = ["--model.backbone=SmallNet", "--model.num_classes=6", "--model.buffer_size=20", "--data.batch_size=12"]
    monkeypatch.setattr("sys.argv", ["train.py", "fit", "--seed_everything=0", *options, *trainer])
    cli = LightningCLI(ER, TinySequence)
    assert cli.model.tasks_finished == 3
    assert len(cli.model.memory) == 20


def test_logging_can_be_switched_off(fit: Fit) -> None:
    assert fit(lambda: ER(small_net(), num_classes=6), log_every_n_steps=0).tasks_finished == 3


def test_a_method_without_a_loss_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        ReplayMethod(small_net(), num_classes=6)  # type: ignore[abstract]


def test_unseen_classes_can_be_masked(make_trainer: MakeTrainer) -> None:
    method = ER(small_net(), num_classes=6, mask_unseen=True)
    make_trainer(max_steps=4).fit(method, TinySequence(batch_size=6))
    method.head.bias.data[3] = 100.0
    assert set(method.class_scores(torch.randn(50, 1, 8, 8)).argmax(1).tolist()) <= {0, 1}
    method.mask_unseen = False
    assert set(method.class_scores(torch.randn(50, 1, 8, 8)).argmax(1).tolist()) == {3}


def test_the_learning_rate_falls_at_the_milestones_of_each_task(fit: Fit) -> None:
    rates = []

    class Watch(TaskCallback):
        def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
            rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    fit(
        lambda: ER(small_net(), num_classes=6, lr=1.0, lr_milestones=[1, 3]),
        TinySequence(epochs_per_task=4, batch_size=24),
        callbacks=[Watch()],
    )
    assert rates == pytest.approx([1.0, 0.1, 0.1, 0.01] * 3)


def test_momentum_is_reset_at_each_task(fit: Fit) -> None:
    """Compared with a new torch SGD for each task, with the same gradients."""
    references: list[torch.optim.SGD] = []
    copies: list[nn.Parameter] = []

    class Reference(TaskCallback):
        def on_train_start(self, trainer: Trainer, method: Any) -> None:
            copies.extend(nn.Parameter(p.detach().clone()) for p in method.parameters())

        def on_train_batch_end(self, trainer: Trainer, method: Any, *_: Any) -> None:
            if len(references) < method.tasks_seen:
                references.append(torch.optim.SGD(copies, 0.03, momentum=0.9, weight_decay=0.1))
            for copy, parameter in zip(copies, method.parameters(), strict=True):
                copy.grad = parameter.grad.clone()
            references[-1].step()

    method = fit(lambda: Finetune(small_net(), num_classes=6, momentum=0.9, weight_decay=0.1), callbacks=[Reference()])
    assert len(references) == 3
    assert all(torch.equal(a, b) for a, b in zip(copies, method.parameters(), strict=True))


def test_scaled_losses_are_refused(make_trainer: MakeTrainer) -> None:
    """Lightning replaces 16-mixed by bf16-mixed on a CPU, hence the mock."""
    with (
        mock.patch.object(Trainer, "precision", new_callable=mock.PropertyMock, return_value="16-mixed"),
        pytest.raises(ConfigurationError, match="must not be 16-mixed.*Use bf16-mixed"),
    ):
        make_trainer().fit(ER(small_net(), num_classes=6), TinySequence())


@pytest.mark.parametrize("precision", ["bf16-true", "64-true"])
def test_accuracies_are_exact_whatever_the_precision(make_trainer: MakeTrainer, tmp_path: Path, precision: Any) -> None:
    """A task has 13 test images, so no accuracy except 0 and 100 is exact in bfloat16."""
    observations = Observations()
    trainer = make_trainer(precision=precision, callbacks=[observations])
    method = ER(small_net(), num_classes=6, lr=0.1)
    trainer.fit(method, TinySequence(per_class=(5, 8) * 3, epochs_per_task=2))
    assert next(method.parameters()).dtype == (torch.bfloat16 if precision == "bf16-true" else torch.float64)
    assert observations.observed is not None
    confusion = observations.observed.confusion
    assert confusion is not None
    hits = confusion.diagonal().view(3, 2).sum(1)
    assert (hits % 13).any()
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    loaded = ER.load_from_checkpoint(tmp_path / "run.ckpt", backbone=small_net())
    for matrix in (method.accuracy_matrix, loaded.accuracy_matrix):
        assert matrix.dtype in (torch.float32, torch.float64)
        assert torch.equal(matrix[-1].float(), 100 * hits / 13)
    assert loaded.bfloat16().accuracy_matrix.dtype in (torch.float32, torch.float64)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_exact_accuracies_come_back_from_forked_processes(fit: Fit) -> None:
    arguments: dict[str, Any] = {"precision": "bf16-true", "devices": 2, "strategy": "ddp_fork"}
    method = fit(lambda: ER(small_net(), num_classes=6), TinySequence(batch_size=12), **arguments)
    assert method.accuracy_matrix.dtype == torch.float32
    hits = method.accuracy_matrix[-1].double() * 24 / 100
    assert torch.allclose(hits, hits.round(), atol=1e-5)


def test_callbacks_of_the_user_are_kept(make_trainer: MakeTrainer) -> None:
    class OwnForgetting(Forgetting):
        pass

    given = OwnForgetting(over="tasks")
    trainer = make_trainer(callbacks=[given])
    trainer.fit(ER(small_net(), num_classes=6), TinySequence(batch_size=12))
    assert [c for c in trainer.callbacks if isinstance(c, Forgetting)] == [given]
    assert sum(isinstance(c, ReservoirSampling) for c in trainer.callbacks) == 1


def test_foreign_checkpoints_are_refused(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    trainer = make_trainer()
    trainer.fit(Finetune(small_net(), num_classes=6), TinySequence(batch_size=12))
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    with pytest.raises(ConfigurationError, match="expected a checkpoint of ER, got one of Finetune"):
        make_trainer().fit(ER(small_net(), num_classes=6), TinySequence(), ckpt_path=tmp_path / "run.ckpt")
    with pytest.raises(ConfigurationError, match="expected a checkpoint for 5 classes, got one for 6"):
        Finetune.load_from_checkpoint(tmp_path / "run.ckpt", backbone=small_net(), num_classes=5)
    torch.save({"state_dict": {}, "pytorch-lightning_version": "2.6.6"}, tmp_path / "foreign.ckpt")
    with pytest.raises(ConfigurationError, match="not written by a method of ddn_lightning"):
        ER.load_from_checkpoint(tmp_path / "foreign.ckpt", backbone=small_net(), num_classes=6)


@pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`")
def test_incompatible_arguments_are_named(make_trainer: MakeTrainer) -> None:
    with pytest.raises(ConfigurationError, match="num_classes must be the 6 of TinySequence, or more, got 5"):
        make_trainer().fit(ER(small_net(), num_classes=5), TinySequence())
    with pytest.raises(ConfigurationError, match=r"of shape \(1, 8, 8\), but SmallNet does not"):
        make_trainer().fit(ER(SmallNet(in_channels=3), num_classes=6), TinySequence())
    with pytest.raises(ConfigurationError, match="needs a TaskSequence such as SplitDigits"):
        make_trainer(max_epochs=1).fit(ER(small_net(), num_classes=6), DataLoader(range(3)))
    backbone = small_net()
    backbone.forward = lambda images: (images,)  # type: ignore[assignment,method-assign]
    with pytest.raises(ConfigurationError, match="features of shape .batch, 8.*but SmallNet gives a tuple of 1"):
        make_trainer().fit(ER(backbone, num_classes=6), TinySequence())
    with pytest.raises(ConfigurationError, match="attribute feature_dim.*Linear has None"):
        ER(nn.Linear(3, 3), num_classes=6)
    with pytest.raises(ConfigurationError, match="buffer_size must be positive, got -5"):
        ER(small_net(), num_classes=6, buffer_size=-5)
