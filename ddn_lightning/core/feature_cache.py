"""Features instead of images for a method with :class:`FrozenFeatures`, from the start of a fit on."""

import torch
from torch import Tensor

from ddn_lightning.core.method_base import MethodBase
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.networks.frozen_features import FrozenFeatures
from ddn_lightning.notes import note
from ddn_lightning.optimization import evaluating

TRIED = 64  # images that tell whether a transform augments


def serve_features(method: MethodBase) -> None:
    """Let the data module give the features of a :class:`FrozenFeatures`; refuse augmentation.

    Args:
        method: A method right before training, on its device and with the weights of the checkpoint.
    """
    if isinstance(method.backbone, FrozenFeatures):
        _check_augmentation(method)
        number = len(method.sequence.train_set) + len(method.sequence.measured_set)
        note(f"computing the features of {number:,} images with {type(method.backbone.backbone).__name__}, once")
        method.sequence.serve_features(lambda images: _features_of(method, images))


def _features_of(method: MethodBase, images: Tensor) -> Tensor:
    """Features of a batch in single precision, on the host."""
    with evaluating(method.backbone), method.trainer.precision_plugin.val_step_context():
        features: Tensor = method.backbone(method.normalised(images))
    return features.float().cpu()


def _check_augmentation(method: MethodBase) -> None:
    transform = method.transform
    assert transform is not None
    some = method.sequence.train_set[:TRIED].images
    is_augmenting = not torch.equal(transform(some), transform(some, torch.Generator().manual_seed(0)))
    if transform.padding or transform.flip or is_augmenting:
        mean, std = (list(values) for values in (method.sequence.mean, method.sequence.std))
        raise ConfigurationError(
            f"FrozenFeatures needs data without augmentation, got padding = {transform.padding} and flip = "
            f"{transform.flip}: pass transform=ImageTransform(mean, std), as in --model.transform ImageTransform "
            f"--model.transform.mean '{mean}' --model.transform.std '{std}'"
        )
