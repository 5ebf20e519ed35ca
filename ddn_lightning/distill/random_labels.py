"""Random soft labels: the control for softness as such."""

from typing import Any, Literal

import torch
from torch import Tensor

from ddn_lightning.devices import moved
from ddn_lightning.distill.label_distiller import DRAWS, LabelDistiller, one_hot
from ddn_lightning.distributed import local_share
from ddn_lightning.samples import Samples


class RandomLabels(LabelDistiller):
    """Uniform noise is added to the hard label, anew at each draw (Table 3 of the DDN paper, row *RANDOM*).

    Args:
        form: ``halves`` makes half of the label the hard one and half the normalised noise, as DDN weighs its labels;
            ``sum`` normalises the sum of both, which leaves the hard label less the more classes there are.
        memory: See :class:`LabelDistiller`.
        compose: See :class:`LabelDistiller`.
        **kwargs: Arguments of :class:`LabelDistiller`.
    """

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
