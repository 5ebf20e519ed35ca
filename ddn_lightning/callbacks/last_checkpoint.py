"""Saves often enough that nothing is lost, and when asked to stop."""

import io
import signal
import time
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from torch import distributed

from ddn_lightning.callbacks.stop_signals import Interrupted, StopSignals
from ddn_lightning.distributed import rank_and_world_size
from ddn_lightning.errors import ConfigurationError, SavingError, check_not_negative
from ddn_lightning.learner import Learner
from ddn_lightning.lightning_internals import dump_checkpoint, forget_sigterm
from ddn_lightning.notes import note_once
from ddn_lightning.runs.files import atomic_write
from ddn_lightning.runs.run_folder import LAST


class LastCheckpoint(Checkpoint):
    """Keeps ``last.ckpt`` up to date: every few minutes, at each task's end, and when the run is asked to stop.

    The file is replaced as a whole, so there is always one to go on from. On Ctrl-C, SIGTERM or SIGUSR1 the batch is
    finished, the checkpoint written, and training left by :class:`Interrupted`. Lightning runs a ``Checkpoint`` after
    all other callbacks, and its ``ModelCheckpoint`` cannot save by time in manual optimization.

    Args:
        folder: Where to write.
        every_n_minutes: Minutes between two checkpoints within a task; 0 saves after every batch.

    Example:
        >>> trainer = Trainer(callbacks=[LastCheckpoint("checkpoints")])  # doctest: +SKIP
        >>> trainer.fit(method, data, ckpt_path="checkpoints/last.ckpt")  # to go on  # doctest: +SKIP
    """

    def __init__(self, folder: str | Path = "checkpoints", every_n_minutes: float = 10.0) -> None:
        check_not_negative(every_n_minutes=every_n_minutes)
        self.folder = Path(folder)
        self.every_n_minutes = every_n_minutes
        self.best_model_path = ""  # what Lightning loads for "best"; there is no better one than the last
        self._stop = StopSignals()
        self._saved_at = time.monotonic()
        self._was_done: tuple[int, int] | None = None  # when training started, while no batch has been trained on

    @property
    def path(self) -> Path:
        """The checkpoint."""
        return self.folder / LAST

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Agree on the folder, which the first rank chose."""
        if not hasattr(type(pl_module), "sequence"):
            raise ConfigurationError(f"LastCheckpoint needs a method such as ER, got {type(pl_module).__name__}")
        self.folder = Path(trainer.strategy.broadcast(str(self.folder)))

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Listen from as early as possible."""
        self._take_over_signals(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: Learner) -> None:  # type: ignore[override]
        """Start the clock, and listen: a resumed run has no sanity check."""
        self._saved_at = time.monotonic()
        self._take_over_signals(trainer)
        self._was_done = _done(pl_module)

    def on_train_batch_start(self, *_: object) -> None:
        """From now on, what is done at the end of a task is saved there."""
        self._was_done = None

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: object) -> None:
        """Save if it is time to, or if training stops here."""
        is_due, stop_signal = self._agree(trainer)
        is_over = trainer.should_stop or 0 <= trainer.max_steps <= trainer.global_step
        # what is due at an epoch's end is saved after its evaluation
        if stop_signal or is_over or (is_due and not trainer.is_last_batch):
            self._save(trainer)
        if stop_signal:
            raise Interrupted(stop_signal, self.path)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Learner) -> None:  # type: ignore[override]
        """Save at a task's end, with its row of the accuracy matrix."""
        clock = pl_module.sequence.clock
        if not clock.is_last_batch:
            return  # cut short by max_steps or an early stop: Lightning counts the epoch as done, and it is not
        is_task_done = clock.epochs_done % clock.epochs_per_task == 0
        is_due, stop_signal = self._agree(trainer)
        if is_task_done or is_due or stop_signal or trainer.should_stop:
            self._save(trainer)
        if stop_signal:
            raise Interrupted(stop_signal, self.path)

    def on_fit_end(self, trainer: Trainer, pl_module: Learner) -> None:  # type: ignore[override]
        """Save what a run has made up for that had been stopped after its very last batch."""
        if self._was_done is not None and self._was_done != _done(pl_module):
            self._save(trainer)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave signals to others again."""
        self._stop.stop_listening()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave signals to others again."""
        self._stop.stop_listening()

    def _take_over_signals(self, trainer: Trainer) -> None:
        """Replace Lightning's own handlers, which would act in the middle of a step."""
        self._stop.listen()
        if trainer.received_sigterm:
            self._stop.note(signal.SIGTERM)
            forget_sigterm(trainer)

    def _agree(self, trainer: Trainer) -> tuple[bool, int]:
        """Whether a checkpoint is due, and the number of the signal to stop by, or 0: the same on all ranks."""
        is_due = time.monotonic() - self._saved_at >= 60 * self.every_n_minutes
        _, world_size = rank_and_world_size()
        if world_size == 1:
            return is_due, self._stop.received
        # waits for the device, but so does Lightning in each step to agree on signals
        agreed = torch.tensor([is_due, self._stop.received], device=trainer.strategy.root_device)
        distributed.all_reduce(agreed, distributed.ReduceOp.MAX)
        is_due_anywhere, stop_signal = agreed.tolist()
        return bool(is_due_anywhere), stop_signal

    def _save(self, trainer: Trainer) -> None:
        """Replace the checkpoint. Not by ``trainer.save_checkpoint``, which writes to the system's temporary folder."""
        checkpoint = dump_checkpoint(trainer)  # on all ranks: parts of it are gathered
        failure = ""
        if trainer.is_global_zero:
            content = io.BytesIO()  # torch does not say why it cannot write a file
            torch.save(checkpoint, content)
            try:
                with atomic_write(self.path) as partial:
                    partial.write_bytes(content.getbuffer())
            except OSError as error:
                before = "the one before is intact" if self.path.exists() else "there is none yet"
                failure = f"a checkpoint could not be written to {self.path}, {before}: {error}"
        if failure := trainer.strategy.broadcast(failure):
            raise SavingError(failure)
        self.best_model_path = str(self.path)
        self._saved_at = time.monotonic()


class SaveProgress(LastCheckpoint):
    """The name of :class:`LastCheckpoint` in version 0.1."""

    def __init__(self, folder: str | Path = "checkpoints", every_n_minutes: float = 10.0) -> None:
        note_once("SaveProgress is called LastCheckpoint now; the old name will go with version 0.3")
        super().__init__(folder, every_n_minutes)


def _done(method: Learner) -> tuple[int, int]:
    """How far the work after batches has come: tasks ended, epochs evaluated."""
    return method.tasks_finished, method.epochs_evaluated
