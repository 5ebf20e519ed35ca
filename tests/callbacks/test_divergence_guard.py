"""A run stops when its loss or weights are not finite, and keeps the last good checkpoint."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from every_method import COMBINATIONS, SlowEnding, build
from lightning.pytorch import Callback, Trainer
from tiny import Fit, MakeTrainer, TinySequence, small_net
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ddn_lightning import (
    ER,
    LUCIR,
    NCM,
    BiC,
    DataDistillNet,
    DivergenceError,
    LabelDistiller,
    LastCheckpoint,
    LoDM,
    LowRankMemory,
    Mnemonics,
    ReplayLoss,
    ReplayMethod,
    Samples,
)
from ddn_lightning.cli import main
from ddn_lightning.methods import lucir, pixel_distillation

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
LAST = Path("checkpoints/last.ckpt")
ROOT = Path(__file__).parents[2]
SHORT = [
    "fit",
    "-c",
    str(ROOT / "configs" / "quickstart.yaml"),
    "--data.epochs_per_task=1",
    "--trainer.enable_progress_bar=false",
]


class BadLoss(ER):
    """The loss is not finite from a step on, counted from 1; the weights stay finite."""

    first_bad_step = 6
    bad = torch.nan

    def current_loss(self, current: Samples) -> ReplayLoss:
        return self._spoilt(super().current_loss(current))

    def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
        return self._spoilt(super().loss(current, *memory))

    def _spoilt(self, loss: ReplayLoss) -> ReplayLoss:
        is_bad = self.trainer.global_step + 1 >= self.first_bad_step
        extra = torch.full((), self.bad if is_bad else 0.0)
        return ReplayLoss(loss.other + extra, loss.current_logits, loss.rehearsal, loss.memory_logits)


class Poison(Callback):
    """Makes a weight infinite after a step, counted from 1."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *_: object) -> None:
        if trainer.global_step == self.step:
            with torch.no_grad():
                pl_module.head.weight[0, 0] = torch.inf


def saved() -> dict[str, Any]:
    checkpoint: dict[str, Any] = torch.load(LAST, weights_only=True)
    return checkpoint


@pytest.mark.parametrize(
    ("method", "distiller"),
    [one for one in COMBINATIONS if not issubclass(one.values[0], NCM)],  # no loss
)
def test_every_method_stops_when_its_loss_is_not_finite(
    fit: Fit, method: type[ReplayMethod], distiller: type[LabelDistiller] | None
) -> None:
    with pytest.raises(DivergenceError, match=r"(nan|inf) in task 1 at step \d+ with lr 1e\+30.*: lower --model.lr"):
        fit(lambda: build(method, distiller, small_net(), lr=1e30))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("interval", [1, 5, 50])
def test_the_message_names_the_first_bad_step_whenever_it_is_checked(
    fit: Fit, bad: float, interval: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BadLoss, "bad", bad)
    with pytest.raises(DivergenceError) as stop:
        fit(lambda: build(BadLoss), log_every_n_steps=interval)
    assert str(stop.value) == f"loss became {bad} in task 2 at step 6 with lr 0.03: lower --model.lr"


@pytest.mark.parametrize("minutes", [0, 1000])
def test_the_last_good_checkpoint_resumes_with_another_learning_rate(fit: Fit, minutes: float) -> None:
    arguments = {"enable_checkpointing": True, "callbacks": [LastCheckpoint(every_n_minutes=minutes)]}
    with pytest.raises(DivergenceError):
        fit(lambda: build(BadLoss), log_every_n_steps=50, **arguments)
    checkpoint = saved()
    assert checkpoint["global_step"] == (5 if minutes == 0 else 4)
    assert all(checkpoint["state_dict"][name].isfinite().all() for name in ("head.weight", "head.bias"))
    checkpoint["ddn_lightning"]["method"] = "ER"
    torch.save(checkpoint, "good.ckpt")
    assert fit(lambda: build(ER, lr=0.01), ckpt_path=Path("good.ckpt")).tasks_finished == 3


@pytest.mark.parametrize(("step", "saved_step"), [(6, 5), (8, 7), (12, 11)])  # in a task, at its end, at the end
def test_weights_that_are_not_finite_are_neither_saved_nor_measured(
    fit: Fit, make_trainer: MakeTrainer, step: int, saved_step: int
) -> None:
    method = build(ER)
    callbacks = [Poison(step), LastCheckpoint(every_n_minutes=0)]
    trainer = make_trainer(enable_checkpointing=True, callbacks=callbacks, log_every_n_steps=50)
    task = (step - 1) // 4 + 1
    with pytest.raises(DivergenceError, match=f"weight is not finite in task {task} after step {step} with lr 0.03: l"):
        trainer.fit(method, TinySequence(batch_size=6))
    assert saved()["global_step"] == saved_step
    assert saved()["state_dict"]["head.weight"].isfinite().all()
    assert int((~method.accuracy_matrix.diagonal().isnan()).sum()) == task - 1
    assert method.tasks_finished == task - 1


def test_without_checkpoints_weights_are_checked_before_each_evaluation(fit: Fit) -> None:
    with pytest.raises(DivergenceError, match="after step 12 "):
        fit(lambda: build(ER), callbacks=[Poison(12)])
    with pytest.raises(DivergenceError, match="after step 11 "):
        fit(lambda: build(ER), callbacks=[Poison(11)], max_steps=11)


def test_a_matching_loss_that_diverges_stops_training(fit: Fit) -> None:
    told = (
        r"^the matching loss became (nan|inf) in task 1 at step \d+ with memory.matching_lr 1e\+30: "
        r"lower --model.memory.matching_lr$"
    )
    with pytest.raises(DivergenceError, match=told):
        fit(lambda: build(LoDM, memory=LowRankMemory(matching_lr=1e30)))


def test_a_bias_correction_that_diverges_stops_training(fit: Fit) -> None:
    class Overflowing(BiC):
        def outputs_of(self, module: nn.Module, samples: Samples) -> Tensor:
            return super().outputs_of(module, samples) * torch.inf

    told = (
        r"^the loss of the bias correction became nan in task 2 at step \d+ with correction_lr 0.01: lower --model.corr"
    )
    with pytest.raises(DivergenceError, match=told):
        fit(lambda: build(Overflowing))


@pytest.mark.parametrize(
    ("method", "module", "told"),
    [
        (LUCIR, lucir, "the loss of fine-tuning became nan in task 2 at step 9 with fine_tuning_lr 0.01: lower "),
        (Mnemonics, pixel_distillation, "distilling the memory became nan in task 1 at step 4 with lr 0.03 and dist"),
    ],
)
def test_a_loss_at_a_tasks_end_that_diverges_stops_training(
    fit: Fit, method: type[ReplayMethod], module: ModuleType, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "descend", lambda loss, optimizer: loss.detach() * torch.nan)
    with pytest.raises(DivergenceError, match=told):
        fit(lambda: build(method))


def test_an_outer_loss_that_diverges_stops_training(fit: Fit) -> None:
    class Exploding(DataDistillNet):
        def __init__(self) -> None:
            super().__init__(lr=1e30)

    told = r"in task 1 at step \d+ with lr 0.03 and distiller.lr 1e\+30: lower --model.lr or --model.distiller.lr"
    with pytest.raises(DivergenceError, match=told):
        fit(lambda: build(ER, Exploding))


class _Waits(TorchDispatchMode):
    """Counts synchronisations: reads of a number from a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


def test_note_loss_does_not_synchronise(fit: Fit) -> None:
    waits: list[int] = []

    class Watch(SlowEnding):
        def note_loss(self, *args: Any, **kwargs: Any) -> None:
            with _Waits() as mode:
                super().note_loss(*args, **kwargs)
            waits.append(mode.count)

    fit(lambda: build(Watch, DataDistillNet))
    assert len(waits) > 12
    assert not any(waits)


def test_two_ranks_stop_together(fit: Fit) -> None:
    class OnOneRank(SlowEnding):
        def note_loss(self, value: Tensor, *args: Any, **kwargs: Any) -> None:
            is_bad = self.trainer.global_rank == 1 and self.trainer.global_step >= 6
            super().note_loss(value * torch.nan if is_bad else value, *args, **kwargs)

    with pytest.raises(
        torch.multiprocessing.ProcessRaisedException, match="DivergenceError: loss became .* at step 6 "
    ):
        fit(lambda: build(OnOneRank), devices=2, strategy="ddp_fork")


def outcome(name: str) -> dict[str, Any]:
    results: dict[str, Any] = json.loads(Path(f"runs/{name}/results.json").read_text())
    return results


def test_the_command_reports_divergence_and_resumes_from_the_last_good_checkpoint(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*SHORT, "--name", "good"]) == 0
    assert main([*SHORT, "--name", "run", "--trainer.max_steps=20"]) == 0
    stopped = outcome("run")
    assert (stopped["status"], stopped["steps"], stopped["tasks_finished"]) == ("incomplete", 20, 1)
    printed = capsys.readouterr().out.splitlines()
    assert "incomplete: 1 of 5 tasks learned, stopped at step 20" in printed
    assert sum(line.startswith("│ task") for line in printed) == 5 + 1

    going_on = [*SHORT, "--name", "run", "--ckpt_path", "last"]
    assert main([*going_on, "--model.lr=1e10"]) == 3
    said = capsys.readouterr()
    _, error, hint = said.err.splitlines()
    assert error == f"error: {outcome('run')['reason']}"
    assert error.startswith("error: loss became nan in task 2 at step 2")
    assert error.endswith(" with lr 1e+10: lower --model.lr")
    assert hint == "to resume from the last good checkpoint add --name run --ckpt_path last"
    assert "diverged: 1 of 5 tasks learned, stopped at step 30" in said.out.splitlines()
    assert outcome("run")["status"] == "diverged"
    assert outcome("run")["accuracy_matrix"][0] == outcome("good")["accuracy_matrix"][0]
    assert outcome("run")["accuracy_matrix"][1][0] is None

    assert main(going_on) == 0
    untimed = {"seconds": 0, "cpu_minutes": 0}
    assert {**outcome("run"), **untimed} == {**outcome("good"), **untimed}
    assert (outcome("run")["status"], outcome("run")["reason"]) == ("complete", None)


def test_resuming_removes_the_status_diverged(monkeypatch: pytest.MonkeyPatch) -> None:
    assert main([*SHORT, "--name", "run", "--model.lr=1e10", "--save_every_n_minutes=0"]) == 3
    assert outcome("run")["status"] == "diverged"

    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(ER, "loss", kill)
    with pytest.raises(Killed):
        main([*SHORT, "--name", "run", "--ckpt_path=last", "--model.lr=0.001"])
    assert not Path("runs/run/results.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "ddp_fork", "ddp_spawn"])
def test_the_command_reports_divergence_with_several_devices(strategy: str) -> None:
    devices = ["--trainer.devices=2", f"--trainer.strategy={strategy}"]
    ended = subprocess.run(  # the ranks of ddp start the command again
        [sys.executable, "-m", "ddn_lightning", *SHORT, "--name=run", "--model.lr=1e10", *devices],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 3, ended.stderr
    (error,) = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert error == f"error: {outcome('run')['reason']}"
    assert "Traceback" not in ended.stderr
    assert outcome("run")["status"] == "diverged"


def test_a_pending_loss_of_an_interrupted_fit_does_not_stop_the_next(make_trainer: MakeTrainer) -> None:
    method = build(ER)
    make_trainer(max_steps=3, enable_checkpointing=True, callbacks=[LastCheckpoint()]).fit(
        method, TinySequence(batch_size=6)
    )
    method.note_loss(torch.tensor(torch.nan))  # and then the fit is interrupted
    make_trainer().fit(method, TinySequence(batch_size=6), ckpt_path="checkpoints/last.ckpt")
    assert method.tasks_finished == 3
