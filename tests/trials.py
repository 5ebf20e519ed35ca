"""Trials of what a user of Lightning brings along: trainings of ER on three tasks, and what is asserted of them."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.fabric.utilities.logger import _add_prefix, _convert_params, _flatten_dict
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.callbacks import BackboneFinetuning, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, Logger, WandbLogger
from lightning.pytorch.tuner import Tuner
from tiny import TinySequence, quiet_trainer, small_net
from torch.optim import SGD, AdamW, Optimizer

from ddn_lightning import ER, ConfigurationError, ReplayMethod

Attempt = Callable[[Path], None]  # raises the refusal, or asserts that it works; in an empty folder
Check = Callable[[ReplayMethod], None]


@dataclass(frozen=True)
class Row:
    """A line of the page.

    Args:
        name: What the user writes.
        claim: What holds if it works; empty if it is refused.
        attempt: Tries it.
    """

    name: str
    claim: str
    attempt: Attempt

    def line(self, folder: Path) -> str:
        """The line, from what the trial gives."""
        if not self.claim:
            with pytest.raises(ConfigurationError) as refusal:
                self.attempt(folder)
            return f"| {self.name} | refused | {refusal.value} |"
        self.attempt(folder)
        return f"| {self.name} | works | {self.claim} |"


def built(
    trainer: dict[str, Any] | None = None,
    method: dict[str, Any] | None = None,
    data: dict[str, Any] | None = None,
    kind: type[ReplayMethod] = ER,
) -> tuple[Trainer, ReplayMethod, TinySequence]:
    """Trainer, method and data from seed 0, with these arguments."""
    seed_everything(0, verbose=False)
    sizes = {"num_classes": 6, "buffer_size": 10, "replay_batch_size": 5, "lr": 0.1}
    arguments: dict[str, Any] = {**sizes, **(method or {})}
    sequence = TinySequence(**{"batch_size": 12, "epochs_per_task": 2, **(data or {})})
    return quiet_trainer(**(trainer or {})), kind(small_net(), **arguments), sequence


def trained(**arguments: Any) -> ReplayMethod:
    trainer, method, data = built(**arguments)
    trainer.fit(method, data)
    return method


def fits(check: Check | None = None, **arguments: Any) -> Attempt:
    """Train, and check the method."""

    def attempt(folder: Path) -> None:
        method = trained(**arguments)
        if check is not None:
            check(method)

    return attempt


@cache
def undisturbed() -> ReplayMethod:
    """The run that others are compared with."""
    return trained()


def same_weights(method: ReplayMethod) -> None:
    assert all(torch.equal(a, b) for a, b in zip(method.parameters(), undisturbed().parameters(), strict=True))


def same_numbers(method: ReplayMethod) -> None:
    assert torch.equal(method.accuracy_matrix.nan_to_num(-1), undisturbed().accuracy_matrix.nan_to_num(-1))
    same_weights(method)


def steps_and_tasks(steps: int, tasks: int) -> Check:
    def check(method: ReplayMethod) -> None:
        assert (method.trainer.global_step, method.tasks_finished) == (steps, tasks)

    return check


def weights_of(dtype: torch.dtype) -> Check:
    def check(method: ReplayMethod) -> None:
        assert {parameter.dtype for parameter in method.parameters()} == {dtype}
        assert method.accuracy_matrix.dtype == torch.promote_types(dtype, torch.float32)
        assert method.accuracy_matrix[-1].isfinite().all()

    return check


class Seen(Callback):
    """The images of each batch, the hooks of each step with whether there are gradients, their norm and the rates."""

    def __init__(self) -> None:
        self.batches: list[torch.Tensor] = []
        self.rates: list[list[float]] = []
        self.norms: list[float] = []
        self.hooks: list[tuple[str, bool]] = []

    def on_train_batch_start(self, trainer: Trainer, module: Any, batch: Any, index: int) -> None:
        self.batches.append(batch.images.clone())

    def on_before_backward(self, trainer: Trainer, module: Any, loss: torch.Tensor) -> None:
        self.hooks.append(("before", loss.requires_grad))

    def on_after_backward(self, trainer: Trainer, module: Any) -> None:
        self.hooks.append(("after", all(p.grad is not None for p in module.parameters())))

    def on_before_optimizer_step(self, trainer: Trainer, module: Any, optimizer: Optimizer) -> None:
        self.rates.append([round(group["lr"], 6) for group in optimizer.param_groups])
        self.norms.append(
            float(torch.nn.utils.get_total_norm([p.grad for p in module.parameters() if p.requires_grad]))
        )
        self.hooks.append(("step", all(p.grad is not None for p in module.parameters())))


def sees(
    check: Callable[[Seen, ReplayMethod], None],
    *callbacks: Callback,
    trainer: dict[str, Any] | None = None,
    **arguments: Any,
) -> Attempt:
    """Train under these callbacks, and check what another one has seen."""

    def attempt(folder: Path) -> None:
        seen = Seen()
        check(seen, trained(trainer={**(trainer or {}), "callbacks": [*callbacks, seen]}, **arguments))

    return attempt


def rates(*expected: float | list[float]) -> Callable[[Seen, ReplayMethod], None]:
    """The learning rates of all parameter groups, the same in each task."""
    wanted = [one if isinstance(one, list) else [one] for one in expected]

    def check(seen: Seen, method: ReplayMethod) -> None:
        assert seen.rates == wanted * (len(seen.rates) // len(wanted))
        assert method.tasks_finished == 3

    return check


def overfits(seen: Seen, method: ReplayMethod) -> None:
    assert len(seen.batches) == 6  # one in each epoch, two epochs a task
    assert torch.equal(seen.batches[0], seen.batches[1])
    assert not torch.equal(seen.batches[0], seen.batches[2])


def sees_every_task(number: int) -> Callable[[Seen, ReplayMethod], None]:
    def check(seen: Seen, method: ReplayMethod) -> None:
        assert len(seen.batches) == 3 * number
        assert method.tasks_finished == 3
        data = method.sequence
        quiet_trainer().validate(method, data, verbose=False)  # leaves it as it was given
        assert data.epochs_per_task == 2

    return check


def called_in_order(seen: Seen, method: ReplayMethod) -> None:
    assert seen.hooks == [("before", True), ("after", True), ("step", True)] * 12
    same_numbers(method)


def clipped_to(limit: float) -> Callable[[Seen, ReplayMethod], None]:
    def check(seen: Seen, method: ReplayMethod) -> None:
        assert len(seen.norms) == 12
        assert max(seen.norms) == pytest.approx(limit, rel=1e-3)

    return check


def fits_twice(folder: Path, on_new_trainer: bool) -> None:
    trainer, method, data = built()
    trainer.fit(method, data)
    (quiet_trainer() if on_new_trainer else trainer).fit(method, data)


def resumes(folder: Path) -> None:
    trained(trainer={"max_steps": 5}).trainer.save_checkpoint(folder / "stopped.ckpt")
    trainer, method, data = built()
    trainer.fit(method, data, ckpt_path=folder / "stopped.ckpt")
    same_numbers(method)


def resumes_with(folder: Path, before: Any, now: Any) -> ReplayMethod:
    """Stop a run with one optimizer after five batches, and resume with another."""
    trained(method={"optimizer": before}, trainer={"max_steps": 5}).trainer.save_checkpoint(folder / "stopped.ckpt")
    trainer, method, data = built(method={"optimizer": now})
    trainer.fit(method, data, ckpt_path=folder / "stopped.ckpt")
    return method


def resumes_with_another_rate(folder: Path) -> None:
    method = resumes_with(folder, partial(AdamW, lr=0.002), partial(AdamW, lr=1e-5))
    assert method.current_lr == 1e-5


def resumes_with_another_optimizer(folder: Path) -> None:
    resumes_with(folder, partial(SGD, lr=0.1), partial(AdamW, lr=0.002))


def resumes_finetuning(folder: Path) -> None:
    def run(path: Path | None = None, **options: Any) -> ReplayMethod:
        finetuning = BackboneFinetuning(2, lambda epoch: 1.0, backbone_initial_lr=0.001)
        trainer, method, data = built(trainer={"callbacks": [finetuning], **options})
        trainer.fit(method, data, ckpt_path=path)
        return method

    run(max_steps=7).trainer.save_checkpoint(folder / "stopped.ckpt")
    pairs = zip(run(folder / "stopped.ckpt").parameters(), run().parameters(), strict=True)
    assert all(torch.equal(resumed, whole) for resumed, whole in pairs)


def evaluates(folder: Path) -> None:
    method = trained()
    data, final = method.sequence, method.accuracy_matrix[-1]
    for evaluate in (quiet_trainer().validate, quiet_trainer().test):
        (values,) = evaluate(method, data, verbose=False)
        (average,) = [value for name, value in values.items() if name.endswith("/average_accuracy")]
        assert average == pytest.approx(float(final.mean()))
    predicted = quiet_trainer().predict(method, data)
    assert torch.cat(predicted).shape == data.test_set.labels.shape  # type: ignore[arg-type]


def is_tuned(name: str) -> Attempt:
    def attempt(folder: Path) -> None:
        trainer, method, data = built()
        try:
            getattr(Tuner(trainer), name)(method, datamodule=data)
        finally:
            assert (method.lr, data.batch_size, method.task) == (0.1, 12, -1)

    return attempt


def keeps(names: set[str], **options: Any) -> Attempt:
    """Train with a ModelCheckpoint, which keeps these files, loadable; the last one is the trained method."""

    def attempt(folder: Path) -> None:
        saving = ModelCheckpoint(folder, **options)
        same_numbers(trained(trainer={"callbacks": [saving], "enable_checkpointing": True}))
        assert {path.name for path in folder.iterdir()} == names
        same_weights(ER.load_from_checkpoint(folder / "epoch=5-step=12.ckpt"))

    return attempt


def logs(make_logger: Callable[[Path], Logger], read: Callable[[Logger], dict[str, Any]]) -> Attempt:
    """Train with a logger, which receives what the run was made of."""

    def attempt(folder: Path) -> None:
        logger = make_logger(folder)
        same_numbers(trained(trainer={"logger": logger}))
        found = read(logger)
        expected = {"method": "ddn_lightning.ER", "backbone": "ddn_lightning.SmallNet", "backbone.width": 4}
        expected |= {"data": "tiny.TinySequence", "data.epochs_per_task": 2, "data.class_order_seed": None}
        expected |= {"lr": 0.1, "buffer_size": 10, "momentum": 0.0, "distiller": None, "seed": 0}
        assert {name: found[name] for name in expected} == expected

    return attempt


def hparams_file(logger: Any) -> dict[str, Any]:
    """What a logger has written to ``hparams.yaml``."""
    found: dict[str, Any] = yaml.safe_load(Path(logger.log_dir, "hparams.yaml").read_text())
    return found


def offline_wandb(folder: Path) -> WandbLogger:
    """A logger of Weights & Biases that stays in this folder, and off the network."""
    names = ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR")
    os.environ.update({**dict.fromkeys(names, str(folder)), "WANDB_SILENT": "true"})
    return WandbLogger(save_dir=folder, offline=True)


def wandb_config(logger: Any) -> dict[str, Any]:
    """What Weights & Biases has received; ends its processes."""
    found = dict(logger.experiment.config)
    import_module("wandb").teardown()
    return found


class PlainLogger(Logger):
    """Keeps what it receives as MLflow's and Comet's loggers send it: flat, by name, numbers alone as metrics."""

    name, version = "plain", 0

    def __init__(self, _: Path) -> None:
        self.arguments: dict[str, Any] = {}
        self.metrics: list[dict[str, float]] = []

    def log_hyperparams(self, params: Any, *_: Any, **__: Any) -> None:
        self.arguments |= _flatten_dict(_convert_params(params))

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        assert step is not None
        assert {type(value) for value in metrics.values()} <= {int, float}
        self.metrics.append(_add_prefix(metrics, "", "/"))


def plain_arguments(logger: Any) -> dict[str, Any]:
    """What the plain logger has received, except the accuracy of each task."""
    assert {f"val/accuracy/task_{task}" for task in (1, 2, 3)} <= {name for row in logger.metrics for name in row}
    found: dict[str, Any] = logger.arguments
    return found


def monitors_rates(folder: Path) -> None:
    logger = CSVLogger(folder)
    options = {"callbacks": [LearningRateMonitor()], "logger": logger, "log_every_n_steps": 1}
    same_numbers(trained(trainer=options))
    header, *rows = Path(logger.log_dir, "metrics.csv").read_text().splitlines()
    column = header.split(",").index("lr-SGD")
    assert {row.split(",")[column] for row in rows} == {"0.1", ""}
