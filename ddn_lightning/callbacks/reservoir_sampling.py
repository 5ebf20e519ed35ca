"""Fills the memory with the incoming batches. A callback by design, as are forgetting and the snapshot of G."""

from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from ddn_lightning.distill.learner import Watched, method_of
from ddn_lightning.samples import Samples, gathered


class ReservoirSampling(Callback):
    """Adds each incoming batch to the memory of the method after the step.

    Every rank adds the gathered global batch to its own copy, with the same generator, so all copies are equal and a
    checkpoint can be resumed on any number of devices.
    """

    method: Watched

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Keep the method, which owns the memory."""
        self.method = method_of(pl_module)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Move a restored memory to the device, before an unfinished task of the checkpoint is ended."""
        self.method.memory.to(pl_module.device)

    def on_train_batch_end(  # type: ignore[override]  # outputs as training_step returns them
        self, trainer: Trainer, pl_module: LightningModule, outputs: Mapping[str, Tensor], batch: Samples, *_: object
    ) -> None:
        """Offer the batch to the memory, over all ranks and with its logits if the method stores them."""
        method: Any = self.method
        with method.progress.unfinished():
            slots = method.memory.add(gathered(batch, outputs["logits"] if method.stores_logits else None), method)
            if method.memory.loss is not None:
                method.note_loss(method.memory.loss, "the matching loss", **method.memory.learning_rates)
            for term in method.terms:
                term.reset_slots(slots)
