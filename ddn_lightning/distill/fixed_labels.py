"""Soft labels that are not learned: the controls for those that are."""

from typing import Any, Literal

import torch
from torch import Tensor

from ddn_lightning.distill.label_distiller import DRAWS, LabelDistiller, one_hot
from ddn_lightning.distributed import local_share, moved
from ddn_lightning.errors import check_fraction
from ddn_lightning.facts import Facts
from ddn_lightning.samples import Samples


class LabelSmoothing(LabelDistiller):
    """A part of each label is spread evenly over the classes (Table 3 of the DDN paper, rows *ER LS*).

    The paper does not say whether its rows add to the hard-label loss or replace it; as smoothing by 0.1 hardly differs
    from ER there, replacing is the default.

    Args:
        epsilon: The part that is spread.
        old_classes_only: Spread it over the classes of earlier tasks only; in the first task there are none.
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
        """The hard labels, smoothed."""
        hard = one_hot(samples, probabilities)
        chosen = self.is_old_class.to(hard.dtype) if self.old_classes_only else hard.new_ones(hard.shape[1])
        spread = self.epsilon * chosen / chosen.sum().clamp_min(1)
        return (1 - spread.sum()) * hard + spread


class RandomLabels(LabelDistiller):
    """Uniform noise is added to the hard label, anew at each draw (Table 3 of the DDN paper, row *RANDOM*).

    Args:
        form: ``halves`` makes half of the label the hard one and half the normalised noise, as DDN weighs its labels;
            ``sum`` normalises the sum of both, which leaves the hard label less the more classes there are.
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
