"""Features instead of images for a method with :class:`FrozenFeatures`, from the start of a fit on."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import torch
from torch import Tensor

from ddn_lightning.checkpoint.construction import construction_of
from ddn_lightning.checkpoint.files import read_archive, reason_of
from ddn_lightning.core.method_base import MethodBase
from ddn_lightning.errors import ConfigurationError, note
from ddn_lightning.networks.frozen_features import FrozenFeatures
from ddn_lightning.networks.gradients import evaluating
from ddn_lightning.runs.files import atomic_write
from ddn_lightning.samples import Samples

TRIED = 64  # images that tell whether a transform augments


def serve_features(method: MethodBase) -> None:
    """Let the data module give the features of a :class:`FrozenFeatures`; refuse augmentation.

    Args:
        method: A method right before training, on its device and with the weights of the checkpoint.
    """
    if isinstance(method.backbone, FrozenFeatures):
        _check_augmentation(method)
        method.sequence.serve_features(lambda split: _features_of_split(method, split))


def _features_of_split(method: MethodBase, split: Samples) -> Tensor:
    """Features of a split in single precision, on the host: from the cache, if it has them."""
    assert isinstance(method.backbone, FrozenFeatures)
    batches = torch.split(torch.arange(len(split)), method.sequence.eval_batch_size)
    folder = method.backbone.cache_dir
    path = None if folder is None else Path(os.path.expanduser(folder)) / f"{_key(method, split, batches)}.pt"
    if path is not None and path.is_file():
        return _read(path, (len(split), method.backbone.feature_dim))
    note(f"computing the features of {len(split):,} images with {type(method.backbone.backbone).__name__}, once")
    features = torch.cat([_features_of(method, split[batch].images) for batch in batches])
    if path is not None:
        with atomic_write(path, partial=path.with_name(f".{path.name}.{uuid4().hex}")) as partial:  # of several ranks
            torch.save(features, partial)
    return features


def _key(method: MethodBase, split: Samples, batches: Sequence[Tensor]) -> str:
    """A hash of everything that the features depend on: images, normalisation, network and precision."""
    backbone, transform = method.backbone, method.transform
    assert isinstance(backbone, FrozenFeatures)
    assert transform is not None
    parts = [transform.scale, transform.shift, *backbone.backbone.state_dict().values()]
    made = construction_of(backbone.backbone)
    digest = hashlib.sha256(f"{made} {method.dtype} {method.trainer.precision}".encode())
    for tensor in (*parts, *(split[batch].images for batch in batches)):
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _read(path: Path, shape: tuple[int, ...]) -> Tensor:
    try:
        with path.open("rb") as file:
            features = read_archive(file)
        if not isinstance(features, Tensor) or features.shape != shape or features.dtype != torch.float32:
            raise ValueError(f"it must contain features of shape {shape}")
    except Exception as error:  # of a dozen kinds for damaged files, see read_checkpoint
        raise ConfigurationError(
            f"{path} cannot be read: {reason_of(error)}; delete it, and it is computed again"
        ) from None
    return features


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
