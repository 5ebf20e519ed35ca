"""Saves ``last.ckpt`` regularly, and when the run is asked to stop."""

import itertools
import signal
import time
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from torch import distributed

from ddn_lightning.callbacks.stop_signals import Interrupted, StopSignals
from ddn_lightning.checkpoint.files import write_checkpoint
from ddn_lightning.distill.learner import Watched, method_of
from ddn_lightning.distributed import rank_and_world_size
from ddn_lightning.errors import ConfigurationError, SavingError, check_not_negative, note
from ddn_lightning.lightning_internals import dump_checkpoint, forget_sigterm
from ddn_lightning.runs.files import atomic_write
from ddn_lightning.runs.run_folder import LAST


class LastCheckpoint(Checkpoint):
    """Keeps ``last.ckpt`` up to date: every few minutes, at each task's end, and when the run is asked to stop.

    The file is replaced atomically, so there is always a valid one. On Ctrl-C, SIGTERM or SIGUSR1 it finishes the
    batch, writes the checkpoint and raises :class:`Interrupted`. Lightning runs a ``Checkpoint`` after all other
    callbacks; its ``ModelCheckpoint`` cannot save by time in manual optimization. A run that starts anew in the folder
    of another keeps that one's checkpoint as ``last-v1.ckpt``; one with ``fast_dev_run`` saves nothing.

    Args:
        folder: Folder of ``last.ckpt``.
        every_n_minutes: Minutes between two checkpoints within a task; 0 saves after every batch.

    Example:
        >>> trainer = Trainer(callbacks=[LastCheckpoint("checkpoints")])  # doctest: +SKIP
        >>> trainer.fit(method, data, ckpt_path="checkpoints/last.ckpt")  # resume  # doctest: +SKIP
    """

    def __init__(self, folder: str | Path = "checkpoints", every_n_minutes: float = 10.0) -> None:
        check_not_negative(every_n_minutes=every_n_minutes)
        self.folder = Path(folder)
        self.every_n_minutes = every_n_minutes
        self.best_model_path = ""  # what Lightning loads for ckpt_path="best": the last checkpoint
        self._stop = StopSignals()
        self._saved_at = time.monotonic()
        self._done_at_start: tuple[int, int, bool] | None = None  # None once a batch was trained on
        self._is_new_run = False  # whether an existing checkpoint is another run's

    @property
    def path(self) -> Path:
        """The checkpoint file."""
        return self.folder / LAST

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Use the folder of the first rank on all ranks."""
        if not hasattr(type(pl_module), "sequence"):
            raise ConfigurationError(f"LastCheckpoint needs a method such as ER, got {type(pl_module).__name__}")
        self.folder = Path(trainer.strategy.broadcast(str(self.folder)))
        self._is_new_run = True

    def on_load_checkpoint(self, *_: object) -> None:
        """From a checkpoint, the run goes on."""
        self._is_new_run = False

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Listen for signals as early as possible."""
        self._take_over_signals(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the timer, and listen for signals: a resumed run has no sanity check."""
        self._saved_at = time.monotonic()
        self._take_over_signals(trainer)
        self._done_at_start = _done(method_of(pl_module))

    def on_train_batch_start(self, *_: object) -> None:
        """From the first batch on, :meth:`on_train_epoch_end` saves the work at task ends."""
        self._done_at_start = None

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: object) -> None:
        """Save if a checkpoint is due, or if training stops here."""
        is_due, stop_signal = self._agree(trainer)
        is_over = trainer.should_stop or 0 <= trainer.max_steps <= trainer.global_step
        # a checkpoint due at an epoch's last batch is saved after the evaluation
        self._save_or_stop(trainer, is_over or (is_due and not trainer.is_last_batch), stop_signal)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save at a task's end, with its row of the accuracy matrix."""
        clock = method_of(pl_module).sequence.clock
        if not clock.is_last_batch:
            return  # max_steps or an early stop cut the epoch short, although Lightning counts it as done
        is_task_done = clock.epochs_done % clock.epochs_per_task == 0
        is_due, stop_signal = self._agree(trainer)
        self._save_or_stop(trainer, is_task_done or is_due or trainer.should_stop, stop_signal)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the work that a run resumed after its very last batch has completed without training a batch."""
        if self._done_at_start is not None and self._done_at_start != _done(method_of(pl_module)):
            self._save(trainer)

    def teardown(self, *_: object, stage: str = "") -> None:
        """Restore the signal handlers."""
        self._stop.stop_listening()

    on_exception = teardown  # type: ignore[assignment]  # which ignores the exception

    def _take_over_signals(self, trainer: Trainer) -> None:
        """Replace Lightning's handlers, which would act in the middle of a step."""
        self._stop.listen()
        if trainer.received_sigterm:
            self._stop.note(signal.SIGTERM)
            forget_sigterm(trainer)

    def _agree(self, trainer: Trainer) -> tuple[bool, int]:
        """Whether a checkpoint is due, and the number of a stop signal or 0; the same on all ranks."""
        is_due = time.monotonic() - self._saved_at >= 60 * self.every_n_minutes
        _, world_size = rank_and_world_size()
        if world_size == 1:
            return is_due, self._stop.received
        # this waits for the device, as Lightning does in each step to agree on signals
        agreed = torch.tensor([is_due, self._stop.received], device=trainer.strategy.root_device)
        distributed.all_reduce(agreed, distributed.ReduceOp.MAX)
        is_due_anywhere, stop_signal = agreed.tolist()
        return bool(is_due_anywhere), stop_signal

    def _save_or_stop(self, trainer: Trainer, is_due: bool, stop_signal: int) -> None:
        if is_due or stop_signal:
            self._save(trainer)
        if stop_signal:
            raise Interrupted(stop_signal, self.path)

    def _save(self, trainer: Trainer) -> None:
        """Replace the checkpoint. ``trainer.save_checkpoint`` would use the system's temporary folder."""
        if trainer.fast_dev_run:  # type: ignore[attr-defined]  # which Lightning sets without declaring it
            return
        checkpoint = dump_checkpoint(trainer)  # on all ranks: parts of it are gathered
        failure = ""
        if trainer.is_global_zero:
            try:
                if self._is_new_run and self.path.exists():
                    self._keep_aside()
                with atomic_write(self.path) as partial:
                    write_checkpoint(checkpoint, partial)
            except OSError as error:
                has_one = not self._is_new_run and self.path.exists()
                before = "the previous one is intact" if has_one else "there is none yet"
                failure = f"a checkpoint could not be written to {self.path}, {before}: {error}"
        if failure := trainer.strategy.broadcast(failure):
            raise SavingError(failure)
        self.best_model_path = str(self.path)
        self._is_new_run = False
        self._saved_at = time.monotonic()

    def _keep_aside(self) -> None:
        """Rename the checkpoint of an earlier run, as Lightning's ``ModelCheckpoint`` numbers its files."""
        names = (self.path.with_stem(f"{self.path.stem}-v{number}") for number in itertools.count(1))
        kept = next(name for name in names if not name.exists())
        self.path.rename(kept)
        note(f"this run started anew; the last one's checkpoint is {kept}: go on from it with ckpt_path={str(kept)!r}")


def _done(method: Watched) -> tuple[int, int, bool]:
    """Tasks finished, epochs evaluated, and whether the test images were opened."""
    return method.tasks_finished, method.progress.epochs_evaluated, bool(method.progress.test_accuracy)
