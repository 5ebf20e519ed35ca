"""Soft labels that are not learned: controls for learned ones."""

from typing import Any, Literal

import torch
from torch import Tensor

from ddn_lightning.distill.label_distiller import DRAWS, LabelDistiller, one_hot
from ddn_lightning.distill.learner import Facts
from ddn_lightning.distributed import local_share, moved
from ddn_lightning.errors import check_fraction
from ddn_lightning.samples import Samples


class LabelSmoothing(LabelDistiller):
    """Label smoothing: spreads a part of each label evenly over the classes (Table 3 of the DDN paper, *ER LS*).

    The paper does not say whether this loss is added to the hard-label loss or replaces it. Its results with 0.1 hardly
    differ from ER, so replacing is the default.

    Args:
        epsilon: The part to spread.
        old_classes_only: Whether to spread it over the classes of earlier tasks only; the first task has none.
        memory: See :class:`LabelDistiller`.
        compose: See :class:`LabelDistiller`.
        **kwargs: Arguments of :class:`LabelDistiller`.
    """

    facts = Facts("label_smoothing", "label smoothing")

    def __init__(
        self,
        epsilon: float = 0.1,
        old_classes_only: bool = False,
        memory: Literal["old", "running"] = "running",
        compose: Literal["additive", "replace"] = "replace",
        **kwargs: Any,
    ) -> None:
        super().__init__(memory=memory, compose=compose, **kwargs)
        check_fraction(epsilon=epsilon)
        self.epsilon = epsilon
        self.old_classes_only = old_classes_only

    def soft_labels(self, samples: Samples, probabilities: Tensor) -> Tensor:
        """The smoothed hard labels."""
        hard = one_hot(samples, probabilities)
        chosen = self.is_old_class.to(hard.dtype) if self.old_classes_only else hard.new_ones(hard.shape[1])
        spread = self.epsilon * chosen / chosen.sum().clamp_min(1)
        return (1 - spread.sum()) * hard + spread


class RandomLabels(LabelDistiller):
    """Adds uniform noise to the hard label, new in each draw (Table 3 of the DDN paper, row *RANDOM*).

    Args:
        form: ``halves`` averages the hard label and the normalised noise, the proportions of DDN; ``sum`` normalises
            their sum, in which the hard label has less weight the more classes there are.
        memory: See :class:`LabelDistiller`.
        compose: See :class:`LabelDistiller`.
        **kwargs: Arguments of :class:`LabelDistiller`.
    """

    facts = Facts("random_labels", "random labels")

    def __init__(
        self,
        form: Literal["halves", "sum"] = "halves",
        memory: Literal["old", "running"] = "running",
        compose: Literal["additive", "replace"] = "replace",
        **kwargs: Any,
    ) -> None:
        super().__init__(memory=memory, compose=compose, **kwargs)
        self.form = form

    def soft_labels(self, samples: Samples, probabilities: Tensor) -> Tensor:
        """The hard labels with noise."""
        hard = one_hot(samples, probabilities)
        noise = torch.rand(samples.total, hard.shape[1], generator=self.streams[DRAWS], dtype=hard.dtype)
        noise = moved(local_share(noise), hard.device)
        if self.form == "halves":
            noise = noise / noise.sum(dim=1, keepdim=True)
        return (hard + noise) / (hard + noise).sum(dim=1, keepdim=True)
