"""Streaming linear discriminant analysis: class means and one covariance of features."""

from typing import Any

import torch
from torch import Tensor

from ddn_lightning.distill.learner import Facts
from ddn_lightning.errors import check_fraction
from ddn_lightning.methods.ncm import NCM


class SLDA(NCM):
    r"""Deep SLDA (Hayes and Kanan, CVPR Workshops 2020, https://arxiv.org/abs/1909.01520), for pre-trained networks.

    As :class:`NCM`, in the metric of the covariance :math:`\Sigma` of features around their class means, of everything
    seen: with :math:`\Lambda = [(1 - \varepsilon) \Sigma + \varepsilon I]^{-1}` the head's weights are
    :math:`\Lambda \mu_c` and its biases :math:`-\mu_c^\top \Lambda \mu_c / 2`. Reading: :math:`\Sigma` is exactly that
    of the whole stream in any order, updated by batches (Chan et al. 1983), where the paper's update weighs each sample
    by the number of all samples before it instead of those of its class.

    Args:
        shrinkage: The part :math:`\varepsilon` of the identity. Published: 0.0001.
        **kwargs: Arguments of :class:`NCM`.
    """

    facts = Facts(
        key="slda",
        title="SLDA",
        reference="[Hayes and Kanan 2020](https://arxiv.org/abs/1909.01520)",
        stores="class means and a covariance, no sample",
        cost="no gradient at all, no replayed batch; a matrix inverse before an evaluation",
    )

    scatter: Tensor  # (feature_dim, feature_dim), sum over all samples

    def __init__(self, *args: Any, shrinkage: float = 1e-4, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check_fraction(shrinkage=shrinkage)
        self.shrinkage = shrinkage
        self.register_buffer("scatter", torch.zeros(self.backbone.feature_dim, self.backbone.feature_dim))

    def observe(self, features: Tensor, members: Tensor) -> None:
        """Add the scatter of a batch around its class means, and that of these around the means so far."""
        counts = members.sum(dim=0)
        means = members.T @ features / counts.clamp_min(1)[:, None]
        within = features - members @ means
        shift = means - self.class_means
        weights = counts * self.class_counts / (counts + self.class_counts).clamp_min(1)
        self.scatter = self.scatter + within.T @ within + (weights[:, None] * shift).T @ shift
        super().observe(features, members)

    def projections(self) -> Tensor:
        """The class means times the inverse of the shrunk covariance."""
        covariance = self.scatter / self.class_counts.sum().clamp_min(1)
        identity = torch.eye(len(covariance), device=covariance.device, dtype=covariance.dtype)
        shrunk = (1 - self.shrinkage) * covariance + self.shrinkage * identity
        solved: Tensor = torch.linalg.solve(shrunk.double(), self.class_means.T.double())
        return solved.T.to(self.class_means.dtype)
