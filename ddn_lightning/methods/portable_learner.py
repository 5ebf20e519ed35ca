"""A learner that can be taken away: it predicts for images from anywhere, and is loaded without arguments by hand."""

import copy
import inspect
import json
from abc import ABC
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, cast

import torch
from torch import Tensor

from ddn_lightning.checkpoint.reading import read_checkpoint
from ddn_lightning.data.data_record import DataRecord
from ddn_lightning.errors import ConfigurationError, check_positive
from ddn_lightning.learner import Learner
from ddn_lightning.methods.exported_model import ExportedModel
from ddn_lightning.methods.loading import check_size, class_of, find_checkpoint, rebuilt, restore
from ddn_lightning.methods.model_file import write_model
from ddn_lightning.methods.prediction import Images, Predictions, raw_images
from ddn_lightning.networks.frozen_features import is_features
from ddn_lightning.optimization import evaluating
from ddn_lightning.samples import Samples


class PortableLearner(Learner, ABC):
    """Carries what predictions need besides the network: transform, class names, size of the images."""

    class_names: tuple[str, ...] | None = None  # of the data that it was trained on, if they have names
    image_shape: tuple[int, ...] | None = None  # (channels, height, width)
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
        check_positive(batch_size=batch_size)
        raw, files = raw_images(images, self._trained_shape("predict"))
        with evaluating(self):
            found = [self.probabilities(part) for part in torch.split(raw, batch_size) if len(part)]
        empty = torch.empty(0, self.num_classes)
        return Predictions(torch.cat([one.cpu() for one in found] or [empty]), self.label_names, files)

    @property
    def label_names(self) -> tuple[str, ...]:
        """The name of each class; its number where the data has no names, and for outputs without a class."""
        known = self.class_names or ()
        return (*known, *map(str, range(len(known), self.num_classes)))

    def export(self, path: str | Path) -> float:
        """Write the method as a file that predicts without this package, and check it.

        The file takes raw ``uint8`` images (batch, channels, height, width) in batches of any size, and returns
        probabilities (batch, num_classes), as :meth:`predict` does; see :class:`ExportedModel`. Its metadata, in ONNX
        ``metadata_props`` or in the ``extra_files`` of a ``.pt2``, are ``class_names`` and ``image_shape``, both JSON,
        ``method`` and ``ddn_lightning``, the version of this package.

        Args:
            path: A file that ends in ``.onnx`` or ``.pt2``; an existing one is replaced.

        Returns:
            The largest difference of a probability between the file and the method, on random images: 1e-5 at most.

        Example:
            >>> ddn_lightning.load("runs/mine").export("model.onnx")  # doctest: +SKIP
            5.960464477539063e-08
        """
        shape = self._trained_shape("export")
        metadata = {
            "class_names": json.dumps(self.label_names),
            "image_shape": json.dumps(shape),
            "method": type(self).__name__,
            "ddn_lightning": version("ddn-lightning"),
        }
        return write_model(ExportedModel(self), Path(path).expanduser(), metadata, shape)

    def _trained_shape(self, action: str) -> tuple[int, ...]:
        if self.image_shape is None or self.transform is None:
            raise ConfigurationError(f"{action} needs a trained method: this one has seen no images")
        return self.image_shape

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
        path, is_strict = find_checkpoint(checkpoint_path), strict is not False
        checkpoint = read_checkpoint(path)
        maker: Any = class_of(checkpoint, PortableLearner, classes) if inspect.isabstract(cls) else cls
        trial = copy.deepcopy(kwargs)  # a distiller belongs to one method
        check_size(lambda: rebuilt(maker, checkpoint, classes, trial), checkpoint, is_strict)
        method = rebuilt(maker, checkpoint, classes, kwargs)
        restore(method, checkpoint, is_strict)
        method.loaded_from = path.absolute()
        return cast(Self, method if map_location is None else method.to(map_location))


def load(path: str | Path, *, classes: Sequence[type] = (), **kwargs: Any) -> PortableLearner:
    """Load a trained method with its backbone, transform and class names, ready to predict.

    Nothing in the file is executed and nothing is imported for it. A checkpoint names the classes of its method and
    backbone: each must be a public class of this package, a class of a module that is already imported, or one of
    ``classes``. Files and sites of pretrained weights are not opened. A file that is damaged, or whose weights have
    other shapes than its arguments say, is refused before memory is allocated for a network.

    Args:
        path: Run folder or checkpoint.
        classes: Further classes that the checkpoint may name, such as ``[MyNet]``.
        **kwargs: Arguments of the method that override those in the checkpoint, such as ``backbone``.

    Example:
        >>> load("runs/mine").predict("photos/").names  # doctest: +SKIP
        ['cat', 'ship']
    """
    method = PortableLearner.load_from_checkpoint(path, classes=classes, **kwargs)
    method.remember_modes()
    return method.eval()
