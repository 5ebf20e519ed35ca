"""Fills the memory with the incoming batches."""

from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from ddn_lightning.checkpoint import checks
from ddn_lightning.checkpoint.checks import check_samples
from ddn_lightning.checkpoint.loops import BATCHES
from ddn_lightning.construction import construction_of
from ddn_lightning.learner import Learner
from ddn_lightning.memory.memory import MADE, check_made
from ddn_lightning.samples import Samples, gathered


class ReservoirSampling(Callback):
    """Adds each incoming batch to the method's memory after the step, and saves the memory in the checkpoint.

    Every rank adds the gathered global batch to its own copy, with the same generator, so all copies are equal and a
    checkpoint can be resumed on any number of devices.
    """

    method: Learner

    def setup(self, trainer: Trainer, pl_module: Learner, stage: str) -> None:  # type: ignore[override]  # methods are Learners
        """Keep the method, which owns the memory."""
        self.method = pl_module

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Move a restored memory to the device, before an unfinished task of the checkpoint is ended."""
        self.method.memory.to(pl_module.device)

    def on_train_batch_end(  # type: ignore[override]  # outputs as training_step returns them
        self, trainer: Trainer, pl_module: LightningModule, outputs: Mapping[str, Tensor], batch: Samples, *_: object
    ) -> None:
        """Add the raw images, and their logits from before the step if the method stores them."""
        self.method.is_unfinished = True
        logits = outputs["logits"] if self.method.stores_logits else None
        memory = self.method.memory
        slots = memory.add(gathered(batch, logits), self.method)
        if memory.loss is not None:
            self.method.note_loss(memory.loss, "the matching loss", **memory.learning_rates)
        if self.method.distiller is not None:
            self.method.distiller.reset_slots(slots)
        self.method.is_unfinished = False

    def state_dict(self) -> dict[str, Any]:
        """The memory, and how it was made."""
        memory = self.method.memory
        return {**memory.state_dict(), MADE: construction_of(memory)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the memory; refuse samples that do not fit this sequence."""
        memory, sequence = self.method.memory, self.method.sequence
        check_made(memory, state_dict)
        memory.load_state_dict({name: value for name, value in state_dict.items() if name != MADE})
        if len(memory):
            held = memory[memory.slots]
            check_samples("memory", held, self.method.stored_form, sequence.may_come, self.method.stores_logits)

    def on_load_checkpoint(  # type: ignore[override]  # methods are Learners
        self, trainer: Trainer, pl_module: Learner, checkpoint: dict[str, Any]
    ) -> None:
        """Grow the memory with the method; refuse one that has seen more samples than the run."""
        state = checkpoint["callbacks"].get(self.state_key, {})
        if pl_module.is_growing and pl_module.new_outputs:
            state = pl_module.memory.grown_state(state, pl_module.num_classes)
            checkpoint["callbacks"][self.state_key] = state
        if trainer.state.fn == "fit" and "seen" in state:
            batches = checkpoint["loops"]["fit_loop"][BATCHES]["total"]["ready"]
            checks.integer("memory/seen", state["seen"], most=batches * pl_module.sequence.batch_size)
