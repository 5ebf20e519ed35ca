"""The form in which a module receives batches: samples for our methods, a tuple or a user's form for other modules."""

from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import torch
from lightning.pytorch import LightningDataModule, Trainer
from torch import Tensor

from ddn_lightning.data.image_transform import ImageTransform
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.random_streams import generator_for
from ddn_lightning.samples import Samples


@runtime_checkable
class BatchMaker(Protocol):
    """A callback that makes the module's batches, such as :class:`~ddn_lightning.callbacks.replay.Replay`."""

    def make_batch(self, samples: Samples) -> Any:
        """The batch that the module receives, from loaded samples on its device."""


def as_tuple(samples: Samples) -> tuple[Tensor, Tensor]:
    """Images and labels."""
    return samples.images, samples.labels


def inputs_of(
    samples: Samples, transform: ImageTransform, trainer: Trainer, generator: torch.Generator | None = None
) -> Samples:
    """The samples as inputs of a module: normalised, in the Trainer's precision, and augmented with a generator."""
    images = transform(samples.images, generator, samples.total)
    return replace(samples, images=trainer.precision_plugin.convert_input(images))


class ModuleBatches(LightningDataModule):
    """Gives batches the form that the module takes, after their transfer to the device.

    The hooks of the module itself come after it, and receive that form.
    """

    transform: ImageTransform
    as_tuples: bool | None
    _shuffle_seed: int

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Move a batch; for a module of the user's own, make it from the samples."""
        batch = super().transfer_batch_to_device(batch, device, dataloader_idx)
        if not isinstance(batch, Samples):
            return batch
        if (maker := self._maker) is not None:
            return maker.make_batch(batch)
        return as_tuple(self._transformed(batch)) if self._gives_tuples else batch

    def check_form(self) -> None:
        """Refuse tuples for a method of ours."""
        if self.as_tuples and self._is_for_method:
            name = type(self.trainer.lightning_module).__name__  # type: ignore[union-attr]  # there is one
            raise ConfigurationError(f"as_tuples must be left out for {name}, whose batches are Samples, got true")

    def state_dict(self) -> dict[str, Any]:
        """With tuples, the seed of order and augmentation; otherwise a method or Replay saves what is needed."""
        return {"shuffle_seed": self._shuffle_seed} if self._gives_tuples else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the seed."""
        self._shuffle_seed = state_dict["shuffle_seed"]

    @property
    def _is_for_method(self) -> bool:
        """Whether the module is a method of ours, which knows its sequence."""
        return hasattr(type(getattr(self.trainer, "lightning_module", None)), "sequence")

    @property
    def _gives_tuples(self) -> bool:
        return not (self._is_for_method or self._maker) if self.as_tuples is None else self.as_tuples

    @property
    def _maker(self) -> BatchMaker | None:
        """The Trainer's callback that makes batches, if there is one."""
        callbacks = getattr(self.trainer, "callbacks", ())
        return next((callback for callback in callbacks if isinstance(callback, BatchMaker)), None)

    def _transformed(self, samples: Samples) -> Samples:
        """Normalised, and augmented in training by a generator of the batch's position, so that a resume repeats it."""
        trainer, generator = self.trainer, None
        assert trainer is not None
        if trainer.training:
            loop = trainer.fit_loop
            epoch: int = loop.epoch_progress.current.processed  # type: ignore[attr-defined]
            position = (epoch, loop.epoch_loop.batch_progress.current.ready)
            generator = generator_for(self._shuffle_seed, f"augmentation of epoch and batch {position}")
        return inputs_of(samples, self.transform, trainer, generator)
