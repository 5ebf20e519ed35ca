"""Replay for any LightningModule, which stays as it is."""

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from ddn_lightning.callbacks.random_state import RandomState
from ddn_lightning.callbacks.replay_checks import check_fit, check_module
from ddn_lightning.callbacks.replay_record import ReplayRecord
from ddn_lightning.callbacks.task_accuracies import ScoresOf, averaged_weights, call_module, task_accuracies
from ddn_lightning.checkpoint.construction import construction_of, plain
from ddn_lightning.checkpoint.loops import begin_next_epoch, settle
from ddn_lightning.data.image_transform import ImageTransform
from ddn_lightning.data.module_batches import as_tuple, inputs_of
from ddn_lightning.data.task_loader import TaskLoader
from ddn_lightning.data.task_sequence import TaskSequence
from ddn_lightning.distributed import local_share
from ddn_lightning.errors import check_not_negative, check_positive
from ddn_lightning.lightning_internals import batches_fetched, is_resuming, restore_position
from ddn_lightning.memory.memory import MADE, Memory, check_made
from ddn_lightning.memory.reservoir_buffer import ReservoirBuffer
from ddn_lightning.metrics.accuracy_matrix import summary
from ddn_lightning.random_streams import RandomStreams
from ddn_lightning.samples import Samples, concatenate, gathered

MATRICES = ("accuracy_matrix", "task_il_matrix")
STATE = ("memory", "streams", "sequence", "random_state", *MATRICES, "test_accuracies", "seconds")


class Replay(Callback):
    """Replays stored samples to any LightningModule, which stays as it is (ER: https://arxiv.org/abs/1902.10486).

    Each training batch that the module receives is the incoming one joined with a draw from memory, augmented and
    normalised. After the step, the incoming samples are offered to the memory. The accuracy matrix has a row for each
    task, measured after its last step. Optimizers, precision, accumulation, clipping, averaging of weights and logging
    remain Lightning's and the module's own. Give all labels of the sequence an output from the start.

    A checkpoint has the memory, the random streams and the global random states: a resumed run continues exactly, as
    far as the module itself does.

    Args:
        buffer_size: Number of samples in the memory.
        replay_batch_size: Samples drawn from memory per batch, over all devices; 0 measures the module without replay.
        memory: Which samples to keep, as for :class:`ReplayMethod`; its own size, if given, overrides ``buffer_size``.
        transform: Augmentation and normalisation; or your augmentation alone, from raw images to images, as
            ``augment`` of :class:`ImageTransform`; by default the data's.
        batch: The form of a batch, in training and evaluation, from augmented samples: ``(images, labels)`` by default.
        scores: The scores (batch, num_classes) of normalised images; by default ``module(images)``.
        folder: A new run folder, if the results are to be written, for ``ddn report`` and ``ddn compare``.

    Attributes:
        accuracy_matrix: Accuracy in percent on each task (column) after each task (row), among all classes.
        task_il_matrix: The same, among the classes of the image's task.
        test_accuracies: With a validation split, the accuracy on the test images of each task, opened once at the end.

    Example:
        >>> replay = Replay(buffer_size=1000)
        >>> trainer = Trainer(max_epochs=-1, callbacks=[replay], logger=False)  # doctest: +SKIP
        >>> trainer.fit(MyModule(), SplitCIFAR10(epochs_per_task=5))  # doctest: +SKIP
        >>> replay.accuracy_matrix[-1].mean()  # doctest: +SKIP
        >>> by_form = Replay(batch=lambda samples: {"pixel_values": samples.images, "labels": samples.labels})
    """

    sequence: TaskSequence
    streams: RandomStreams

    def __init__(
        self,
        buffer_size: int = 200,
        replay_batch_size: int = 32,
        memory: Memory | None = None,
        transform: ImageTransform | Callable[[Tensor], Tensor] | None = None,
        batch: Callable[[Samples], Any] = as_tuple,
        scores: ScoresOf = call_module,
        folder: str | Path | None = None,
    ) -> None:
        check_positive(buffer_size=buffer_size)
        check_not_negative(replay_batch_size=replay_batch_size)
        self.memory = ReservoirBuffer() if memory is None else memory
        self.buffer_size = self.memory.buffer_size or buffer_size
        self.replay_batch_size = replay_batch_size
        self.transform = transform
        self.batch = batch
        self.scores = scores
        self.accuracy_matrix = self.task_il_matrix = torch.empty(0, 0)
        self.test_accuracies: list[float] = []
        self._random_state = RandomState()
        self._record = None if folder is None else ReplayRecord(Path(folder))

    def make_batch(self, samples: Samples) -> Any:
        """The batch that the module receives; the data module calls this for each batch, on the device."""
        if not self._trainer.training:
            return self.batch(self._normalised(samples))
        self._incoming = samples
        parts = [self._augmented(samples)]
        if len(slots := self.memory.draw(self.replay_batch_size)):
            drawn = replace(self.memory[local_share(slots)], global_size=len(slots))
            parts.append(self._augmented(drawn))
        return self.batch(concatenate(parts))

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse what cannot work; for a fit, clear the memory and the matrices."""
        self._trainer = trainer
        self.sequence = check_fit(trainer, pl_module)
        self._transform = ImageTransform.of(self.transform, self.sequence.transform)
        if stage != "fit":
            return
        if self._record is not None and trainer.is_global_zero:
            self._record.check(is_resuming(trainer))
        self.streams = RandomStreams(trainer.strategy.broadcast(torch.initial_seed()))
        self.memory.reset(self.buffer_size, seed=self.streams["memory"].initial_seed())
        size = (self.sequence.num_tasks, self.sequence.num_tasks)
        self.accuracy_matrix, self.task_il_matrix = torch.full(size, torch.nan), torch.full(size, torch.nan)
        self.test_accuracies = []

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Move a restored memory to the device; refuse a module that the images or the memory do not fit."""
        self.memory.check(self.sequence.num_classes, self.sequence.image_shape)
        self.memory.to(pl_module.device)
        normalised = self._normalised(self.sequence.training_samples(0)[:1].to(pl_module.device))
        with trainer.precision_plugin.val_step_context():
            check_module(pl_module, self.scores, normalised.images, self.sequence.num_classes, self.memory)
        network = pl_module if self.scores is call_module else _ScoredModule(pl_module, self.scores)
        self._owner = _Owner(self.sequence.num_classes, network, self._normalised)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore the global random states and the position in the epoch; at its end, begin the next one."""
        self._random_state.on_train_start(trainer, pl_module)
        restore_position(trainer)
        begin_next_epoch(trainer)
        if self._record is not None and trainer.is_global_zero:
            sizes = {"buffer_size": self.buffer_size, "replay_batch_size": self.replay_batch_size}
            arguments = {**sizes, "memory": construction_of(self.memory), "transform": plain(self._transform)}
            self._record.begin(pl_module, self.sequence, arguments, self.streams.seed)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Offer the incoming samples to the memory; after a task's last batch, measure its row."""
        self.memory.add(gathered(self._incoming), self._owner)
        if self.sequence.clock.at_task_end:
            with averaged_weights(trainer, pl_module, outputs, batch, batch_idx):
                self._measure(trainer, pl_module, self.sequence.clock.task)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the results, if there is a folder for them."""
        if self._record is not None and trainer.is_global_zero:
            facts = {"method": type(pl_module).__name__, "plugin": "Replay" if self.replay_batch_size else None}
            sizes = {"buffer_size": self.buffer_size, "seed": self.streams.seed}
            matrices = (self.accuracy_matrix, self.task_il_matrix)
            self._record.finish(trainer, self.sequence, matrices, self.test_accuracies, **facts, **sizes)

    def on_exception(self, *_: object) -> None:
        """Unlock the folder."""
        if self._record is not None:
            self._record.release()

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run continues with."""
        return {
            "memory": {**self.memory.state_dict(), MADE: construction_of(self.memory)},
            "streams": self.streams.state_dict(),
            "sequence": self.sequence.resume_state(),
            "random_state": self._random_state.state_dict(),
            "accuracy_matrix": self.accuracy_matrix,
            "task_il_matrix": self.task_il_matrix,
            "test_accuracies": self.test_accuracies,
            "seconds": 0.0 if self._record is None else self._record.seconds,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore, and refuse a checkpoint of another sequence or memory."""
        state = state_dict
        self.sequence.resume_from(state["sequence"])
        if self._trainer.state.fn != "fit":
            return
        if self._record is not None:
            self._record.seconds_before = state["seconds"]
        check_made(self.memory, state["memory"])
        self.memory.load_state_dict({name: value for name, value in state["memory"].items() if name != MADE})
        self.streams.load_state_dict(state["streams"])
        self._random_state.load_state_dict(state["random_state"])
        tasks = len(state["sequence"]["task_classes"])  # fewer than now, if the sequence has been continued
        for name in MATRICES:
            getattr(self, name)[:tasks, :tasks] = state[name]
        if tasks == self.sequence.num_tasks:
            self.test_accuracies = list(state["test_accuracies"])

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Let the loops resume after the last completed batch, wherever the checkpoint is saved."""
        loop = checkpoint["loops"]["fit_loop"]["epoch_loop.state_dict"]
        logged = loop["_batches_that_stepped"]
        settle(checkpoint, fetched=batches_fetched(trainer))
        if trainer.accumulate_grad_batches > 1:
            loop["_batches_that_stepped"] = logged  # Lightning's own count: not each batch takes a step

    def _measure(self, trainer: Trainer, module: LightningModule, task: int) -> None:
        """Store the rows of a task and log them; after the last task, open the test images of a validation split."""
        sequence = self.sequence
        loader = sequence.evaluation_loader(task + 1)
        row, task_il_row = self._accuracies(loader, loader.batches_within(trainer.limit_val_batches), task)
        self.accuracy_matrix[task], self.task_il_matrix[task] = row.cpu(), task_il_row.cpu()
        found = {f"val/accuracy/task_{number + 1}": row[number] for number in range(task + 1)}
        is_over = task == sequence.num_tasks - 1
        if is_over and sequence.validation is not None and not sequence.closed_test:
            loader = sequence.test_dataloader()
            test, _ = self._accuracies(loader, loader.batches_within(trainer.limit_test_batches), task)
            self.test_accuracies = test.tolist()
            found |= {f"test/accuracy/task_{number + 1}": value for number, value in enumerate(test)}
            found["test/average_accuracy"] = test.mean()
        if not trainer.barebones:
            found |= summary(self.accuracy_matrix)
            module.log_dict(found, on_step=False, on_epoch=True, sync_dist=True, batch_size=1)
        # what spawned processes return; a callback's attributes are lost with them
        trainer.callback_metrics["accuracy_matrix"] = self.accuracy_matrix

    def _accuracies(self, loader: TaskLoader, number: int, task: int) -> tuple[Tensor, Tensor]:
        module = self._trainer.lightning_module
        batches = (self._normalised(batch.to(module.device)) for batch in islice(loader, number))

        def scores_of(module: LightningModule, images: Tensor) -> Tensor:
            with self._trainer.precision_plugin.val_step_context():
                return self.scores(module, images)

        return task_accuracies(module, scores_of, batches, self.sequence.is_class_of_task, task)

    def _augmented(self, samples: Samples) -> Samples:
        return inputs_of(samples, self._transform, self._trainer, self.streams["augment"])

    def _normalised(self, samples: Samples) -> Samples:
        return inputs_of(samples, self._transform, self._trainer)


class _Owner:
    """What a memory may use of the module."""

    def __init__(self, num_classes: int, network: nn.Module, inputs_of: Callable[[Samples], Samples]) -> None:
        self.num_classes = num_classes
        self.network = network
        self.inputs_of = inputs_of

    def normalised(self, images: Tensor) -> Tensor:
        """Stored images as network inputs."""
        return self.inputs_of(Samples(images, torch.empty(len(images)))).images


class _ScoredModule(nn.Module):
    """A module whose outputs are its scores."""

    def __init__(self, module: LightningModule, scores: ScoresOf) -> None:
        super().__init__()
        self.module = module
        self.scores = scores

    def forward(self, images: Tensor) -> Tensor:
        """The scores of normalised images."""
        return self.scores(self.module, images)
