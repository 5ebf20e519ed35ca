"""Labels that were measured against Data-Distill-Net's and not kept, so that their lines in ``measured.csv`` repeat.

Each is an override of a few lines, and an example of how to try one's own:
``ddn fit ... --model.distiller ddn_lightning.distill.other_readings.WithinMixture``.
"""

import torch
from torch import Tensor

from ddn_lightning.distill.data_distill_net import DataDistillNet
from ddn_lightning.distill.distiller import LabelDistiller, one_hot
from ddn_lightning.samples import Samples


class WithinMixture(DataDistillNet):
    """G is trained as the part of Eq. 8 that it is: on the labels that the classifier gets, G_old included."""

    def labels_to_learn(self, samples: Samples, probabilities: Tensor) -> Tensor:
        """Labels by Eq. 8."""
        return self.soft_labels(samples, probabilities)


class OwnPrediction(LabelDistiller):
    """Half hard label, half the network's own prediction among the classes of earlier tasks: nothing is learned."""

    def soft_labels(self, samples: Samples, probabilities: Tensor) -> Tensor:
        """What the network thinks already, with the new classes left out; the hard label where nothing is left."""
        hard = one_hot(samples, probabilities)
        old = probabilities * self.is_old_class
        total = old.sum(dim=1, keepdim=True)
        return (hard + torch.where(total > 0, old / total, hard)) / 2
