"""Saves often enough that nothing is lost, and when asked to stop."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from torch import distributed

from ddn_lightning.distributed import rank_and_world_size
from ddn_lightning.errors import SavingError, check_not_negative
from ddn_lightning.files import replacing
from ddn_lightning.stop_signals import Interrupted, StopSignals

if TYPE_CHECKING:
    from ddn_lightning.methods.base import ReplayMethod

LAST = "last.ckpt"
DUE = 1  # below every signal's number that stops a run, so that asking to stop goes first


class SaveProgress(Checkpoint):
    """Keeps ``last.ckpt`` up to date: every few minutes, at each task's end, and when the run is asked to stop.

    The file is replaced as a whole, so there is always one to go on from. On Ctrl-C, SIGTERM or SIGUSR1 the batch is
    finished, the checkpoint written, and training left by :class:`Interrupted`. Lightning runs a ``Checkpoint`` after
    all other callbacks, and its ``ModelCheckpoint`` cannot save by time in manual optimization.

    Args:
        folder: Where to write.
        every_n_minutes: Minutes between two checkpoints within a task; 0 saves after every batch.
    """

    def __init__(self, folder: str | Path = "checkpoints", every_n_minutes: float = 10.0) -> None:
        check_not_negative(every_n_minutes=every_n_minutes)
        self.folder = Path(folder)
        self.every_n_minutes = every_n_minutes
        self._stop = StopSignals()
        self._saved_at = time.monotonic()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Agree on the folder, which the first rank chose."""
        self.folder = Path(trainer.strategy.broadcast(str(self.folder)))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take over from Lightning's own handlers, which would act in the middle of a step."""
        self._saved_at = time.monotonic()
        self._stop.listen()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: object) -> None:
        """Save if it is time to, or if the run is to stop. Nothing of this batch but the task's end is left to do."""
        wanted = self._wanted(trainer)
        if wanted > DUE or (wanted and not trainer.is_last_batch):  # else an evaluation follows, which can go along
            self._save(trainer, wanted)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: "ReplayMethod") -> None:  # type: ignore[override]
        """Save at a task's end, with its row of the accuracy matrix."""
        if not trainer.is_last_batch:
            return  # cut short by max_steps or an early stop: Lightning counts the epoch as done, and it is not
        sequence = pl_module.sequence
        is_task_done = sequence.epochs_done % sequence.epochs_per_task == 0
        wanted = self._wanted(trainer)
        if wanted or is_task_done:
            self._save(trainer, wanted)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave signals to others again."""
        self._stop.ignore()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave signals to others again."""
        self._stop.ignore()

    def _wanted(self, trainer: Trainer) -> int:
        """Nothing (0), a checkpoint (``DUE``), or the number of the signal to stop by: the same on all ranks."""
        rank, world_size = rank_and_world_size()
        is_due = rank == 0 and time.monotonic() - self._saved_at >= 60 * self.every_n_minutes
        wanted = self._stop.received or (DUE if is_due else 0)
        if world_size == 1:
            return wanted
        # waits for the device, but so does Lightning in each step to agree on signals
        agreed = torch.tensor(wanted, device=trainer.strategy.root_device)
        distributed.all_reduce(agreed, distributed.ReduceOp.MAX)
        return int(agreed)

    def _save(self, trainer: Trainer, wanted: int) -> None:
        path = self.folder / LAST
        try:
            if trainer.is_global_zero:
                with replacing(path) as partial:
                    trainer.save_checkpoint(partial)
            else:
                trainer.save_checkpoint(path)  # takes part in gathering what is saved, and writes nothing
        except OSError as error:
            is_there = "the one before is intact" if path.exists() else "there is none yet"
            raise SavingError(f"a checkpoint could not be written to {path}, {is_there}: {error}") from error
        self._saved_at = time.monotonic()
        if wanted > DUE:
            raise Interrupted(wanted, path)
