"""A learner that can be taken away: it predicts for images from anywhere, and is loaded without arguments by hand."""

from abc import ABC
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import torch
from torch import Tensor

from ddn_lightning.data.data_record import DataRecord
from ddn_lightning.deploy.export import export
from ddn_lightning.deploy.load import load_method
from ddn_lightning.deploy.predict import Images, Predictions, predict
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.learner import Learner
from ddn_lightning.networks.frozen_features import is_features
from ddn_lightning.samples import Samples


class PortableLearner(Learner, ABC):
    """Carries what predictions need besides the network: transform, class names, size of the images."""

    task_classes: list[list[int]] | None = None  # of each task
    loaded_from: Path | None = None  # the checkpoint
    _modes: Mapping[str, bool] = MappingProxyType({})  # whether each module is in training mode in a fit

    def predict(self, images: Images, batch_size: int = 256) -> Predictions:
        """Class names and probabilities for images from anywhere.

        Args:
            images: Raw ``uint8`` images (number, channels, height, width), a PIL image, an image file, a folder with
                image files in it or in its folders, or a list of these.
            batch_size: Images per forward pass.

        Example:
            >>> method = ddn_lightning.load("runs/mine")  # doctest: +SKIP
            >>> method.predict("photos/").names  # doctest: +SKIP
            ['cat', 'ship']
        """
        return predict(self, images, batch_size)

    def export(self, path: str | Path) -> float:
        """Write the method as a ``.onnx`` or ``.pt2`` file that predicts without this package, and check it.

        Returns:
            The largest difference of a probability between the file and the method, on random images: 1e-5 at most.

        Example:
            >>> ddn_lightning.load("runs/mine").export("model.onnx")  # doctest: +SKIP
            5.960464477539063e-08
        """
        return export(self, path)

    def remember_modes(self) -> None:
        """Note which modules are in training mode, for :meth:`return_to_training`."""
        self._modes = {name: module.training for name, module in self.named_modules()}

    def return_to_training(self) -> None:
        """Leave evaluation mode, except for modules that were in it before."""
        self.train()
        for name, module in self.named_modules():
            module.training = self._modes.get(name, module.training)

    def predict_step(self, batch: Samples | Tensor | Sequence[Tensor], batch_index: int) -> Tensor:
        """The predicted classes of a batch of raw ``uint8`` images, alone or with labels."""
        if isinstance(batch, Samples):
            return self.validation_step(batch, batch_index).argmax(dim=1)
        images = batch if isinstance(batch, Tensor) else batch[0]
        if images.dtype != torch.uint8 and not is_features(images):
            dtype = str(images.dtype).removeprefix("torch.")
            raise ConfigurationError(
                f"a prediction takes raw uint8 images, got {dtype}: call method(images) for logits of normalised images"
            )
        return self.class_scores(self.normalised(images)).argmax(dim=1)

    def take_names_and_shape(self, data: DataRecord) -> None:
        """Note what classes are called and what images look like, for predictions without the data."""
        self.class_names = data.class_names
        facts = data.test or data.train
        self.image_shape = None if facts is None else tuple(facts.image_shape)

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]  # a file or a folder; Lightning also takes an open file
        cls,
        checkpoint_path: str | Path,
        map_location: Any = None,
        *,
        strict: bool | None = None,
        weights_only: bool | None = True,
        classes: Sequence[type] = (),
        **kwargs: Any,
    ) -> Self:
        """A trained method, as Lightning has it, without any argument by hand.

        Args:
            checkpoint_path: A checkpoint, or the folder of a run.
            map_location: Device.
            strict: Whether all weights must be there, and no others.
            weights_only: Nothing in a checkpoint is executed, whatever this says.
            classes: Classes that the checkpoint may name, see :func:`load`.
            **kwargs: Arguments of the method that override the checkpoint's, such as ``backbone``.
        """
        method = load_method(cls, checkpoint_path, strict is not False, classes, **kwargs)
        return method if map_location is None else method.to(map_location)
