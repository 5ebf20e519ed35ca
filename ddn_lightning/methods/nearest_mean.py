"""Nearest-mean classification: predictions by the mean features of the stored samples."""

from abc import ABC
from typing import Any

import torch
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn
from torch.nn import functional

from ddn_lightning.checkpoint.growth import resized
from ddn_lightning.core.replay_method import ReplayMethod
from ddn_lightning.networks.batch_statistics import Buffers, swapped_buffers
from ddn_lightning.samples import Samples


class NearestMean(ReplayMethod, ABC):
    """Predicts the class whose stored samples have the nearest mean feature; a base class beside that of the method.

    Args:
        normalise: Whether to normalise features and means, as in iCaRL's paper. By default they are not, as in the code
            that the DDN paper builds on.
        **kwargs: Arguments of the method's other base class.
    """

    class_means: Tensor  # (num_classes, feature_dim); zero for a class without samples

    def __init__(self, *args: Any, normalise: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.normalise = normalise
        self.register_buffer("class_means", torch.zeros(self.num_classes, self.backbone.feature_dim))

    def grow(self, num_classes: int) -> None:
        """Change the number of outputs; the means of new classes are computed with their samples."""
        super().grow(num_classes)
        self.class_means = resized(self.class_means, (num_classes, self.backbone.feature_dim))

    @property
    def has_means(self) -> bool:
        """Whether the means are those of the current network."""
        return True

    def measure_means(self) -> None:
        """Compute the means of all classes."""
        self.class_means = self._means_of_stored()

    def _means_of_stored(self) -> Tensor:
        assert self.stored_samples is not None
        stored = self.stored_samples[self.stored_samples.slots]
        features = self._directions(self.outputs_of(self._predicting_backbone, stored))
        labels = stored.labels.to(features.device)
        sums = torch.zeros_like(self.class_means).index_add(0, labels, features)
        counts = torch.bincount(labels, minlength=self.num_classes)
        return self._directions(sums / counts.clamp_min(1)[:, None])

    def calibrated_buffers(self, batch_size: int, class_balanced: bool = False) -> Buffers:
        """Adds the class means of the calibrated network."""
        buffers = super().calibrated_buffers(batch_size, class_balanced)
        if buffers and self.has_means:
            with torch.inference_mode(False), isolate_rng(), swapped_buffers(self, buffers):
                buffers["class_means"] = self._means_of_stored()
        return buffers

    def features_of(self, samples: Samples) -> Tensor:
        """Features in evaluation mode, normalised if ``normalise``."""
        return self._directions(super().features_of(samples))

    def class_scores(self, images: Tensor) -> Tensor:
        """Negative squared distances to the class means."""
        features = self._directions(self._predicting_backbone(images))
        return self.masked(-(features[:, None] - self.class_means).square().sum(dim=2))

    @property
    def _predicting_backbone(self) -> nn.Module:
        return self.predicting_network.get_submodule("backbone")

    def _directions(self, vectors: Tensor) -> Tensor:
        return functional.normalize(vectors) if self.normalise else vectors
