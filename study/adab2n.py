"""AdaB2N (Lyu et al., NeurIPS 2023, https://arxiv.org/abs/2310.08855): BatchNorm that balances the tasks of a batch.

``ddn fit ... --model study.adab2n.AdaptiveER --model.backbone study.adab2n.AdaptiveResNet18``; with the backbone as it
is, the method is its control, :class:`OneForward`.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ddn_lightning import ER, ReplayLoss, ResNet18, Samples
from ddn_lightning.errors import check_fraction, check_not_negative
from ddn_lightning.samples import concatenate, cross_entropy
from study.normalization import replace_batch_norm

START = 0.1  # BatchNorm's momentum


class AdaptiveBatchNorm2d(nn.BatchNorm2d):
    r"""BatchNorm whose batch statistics weight tasks, and whose running ones have a longer memory.

    In a batch with :math:`n_j` samples of task j the weight of that task is :math:`e^{\psi_j} + n_j`, normalised over
    the tasks seen, with learned :math:`\psi`, and its samples share it equally. The momentum of step t is
    :math:`\eta_t = \eta_{t-1} / (\eta_{t-1} + (1 - \eta)^\kappa)` from :math:`\eta_1 = \eta^\kappa`, which is the
    usual one for :math:`\kappa = 1` and a cumulative average for 0.

    Args:
        num_features: Channels.
        num_tasks: Tasks of the sequence.
        kappa: See above.
    """

    def __init__(self, num_features: int, num_tasks: int, kappa: float) -> None:
        super().__init__(num_features, momentum=START)
        check_fraction(kappa=kappa)
        self.kappa = kappa
        self.task_logits = nn.Parameter(torch.zeros(num_tasks))  # psi
        self.tasks: Tensor | None = None  # of the samples of the next batch, if they are to be balanced
        self.distance = torch.zeros(())  # of the last batch's statistics from the running ones, with a gradient

    def forward(self, features: Tensor) -> Tensor:
        """The normalised features."""
        if not self.training:
            return super().forward(features)
        mean, variance = self._moments(features)
        if self.track_running_stats:
            moments = self._move(mean.detach(), variance.detach())
            self.distance = functional.mse_loss(mean, moments[0]) + functional.mse_loss(variance, moments[1])
        normal = (features - mean[:, None, None]) * (variance[:, None, None] + self.eps).rsqrt()
        return self.weight[:, None, None] * normal + self.bias[:, None, None]

    def _moments(self, features: Tensor) -> tuple[Tensor, Tensor]:
        if self.tasks is None:
            variance, mean = torch.var_mean(features, (0, 2, 3), correction=0)
            return mean, variance
        weights = self.sample_weights(self.tasks)
        mean = weights @ features.mean((2, 3))
        variance = weights @ (features - mean[:, None, None]).square().mean((2, 3))
        return mean, variance

    def sample_weights(self, tasks: Tensor) -> Tensor:
        """The weight of each sample of a batch, for its task (batch); tasks up to the largest one count as seen."""
        counts = torch.bincount(tasks, minlength=len(self.task_logits))
        seen = torch.arange(len(counts), device=tasks.device) <= tasks.max()
        concentration = torch.where(seen, self.task_logits.exp() + counts, 0.0)
        return (concentration / concentration.sum())[tasks] / counts[tasks]

    def _move(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        momentum = self.momentum_at(self.num_batches_tracked)
        return self.running_mean.lerp_(mean, momentum), self.running_var.lerp_(variance, momentum)

    def momentum_at(self, number: Tensor) -> Tensor:
        """The momentum of the batch with this number, counted from 1: the recurrence solved for 1 / eta_t."""
        if self.momentum is None or self.kappa == 0:  # None while statistics are calibrated
            return 1 / number
        decay: float = (1 - START) ** self.kappa
        power = torch.pow(decay, number - 1)
        momentum: Tensor = 1 / ((1 - power) / (1 - decay) + power / START**self.kappa)
        return momentum


class AdaptiveResNet18(ResNet18):
    """ResNet-18 with :class:`AdaptiveBatchNorm2d`.

    Args:
        in_channels: Channels of the images.
        width: Channels of the first stage.
        num_tasks: Tasks of the sequence.
        kappa: Memory of the running statistics.
    """

    def __init__(self, in_channels: int = 3, width: int = 64, num_tasks: int = 5, kappa: float = 1.0) -> None:
        super().__init__(in_channels, width)
        replace_batch_norm(self, lambda channels: AdaptiveBatchNorm2d(channels, num_tasks, kappa))


class OneForward(ER):
    """ER that forwards the incoming and the replayed batch together and adds their mean losses."""

    def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
        """ER's loss, with BatchNorm statistics of both batches."""
        (replayed,) = memory
        logits = self.adapted(self(concatenate([current, replayed]).images))
        new, old = logits[: len(current)], logits[len(current) :]
        return ReplayLoss(cross_entropy(new, current), new, cross_entropy(old, replayed), old)


class AdaptiveER(OneForward):
    """ER with AdaB2N: :class:`OneForward`, plus the distance of batch statistics from the running ones.

    Args:
        *args: Arguments of :class:`ER`.
        distance_weight: Weight of that distance, lambda.
        **kwargs: Arguments of :class:`ER`.
    """

    def __init__(self, *args: Any, distance_weight: float = 0.1, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check_not_negative(distance_weight=distance_weight)
        self.distance_weight = distance_weight

    def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
        """The loss of both batches, balanced from the second task on."""
        layers = [layer for layer in self.modules() if isinstance(layer, AdaptiveBatchNorm2d)]
        tasks = concatenate([current, *memory]).tasks
        for layer in layers:
            layer.tasks = tasks if self.task else None
        loss = super().loss(current, *memory)
        distance = torch.stack([layer.distance for layer in layers]).sum()
        for layer in layers:
            layer.tasks, layer.distance = None, layer.distance.detach()
        return ReplayLoss(
            loss.other + self.distance_weight * distance, loss.current_logits, loss.rehearsal, loss.memory_logits
        )
