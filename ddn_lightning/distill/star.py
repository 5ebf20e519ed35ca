"""STAR: keep the predictions on memory where the weights are about to go."""

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from ddn_lightning.distill.hypergradient import FrozenNetwork
from ddn_lightning.distill.label_distiller import DRAWS, LabelDistiller
from ddn_lightning.distill.learner import Facts, Learner
from ddn_lightning.distill.replay_loss import ReplayLoss
from ddn_lightning.distributed import moved, sum_across_ranks
from ddn_lightning.errors import check_not_negative, check_positive
from ddn_lightning.networks.gradients import gradient_of_sum
from ddn_lightning.samples import Samples


class STAR(LabelDistiller):
    r"""STAR (Eskandar et al., ICLR 2025, https://arxiv.org/abs/2503.01595), for any method that takes a distiller.

    Adds to the method's loss how much the predictions of an additional draw from memory change when the weights
    :math:`\theta` move in nearly the worst direction :math:`\delta`,

    .. math:: \alpha \, \mathrm{KL}(p_\theta \,\|\, p_{\theta + \delta}), \qquad
              \delta_i = \gamma \frac{\lVert\theta_i\rVert}{\lVert g_i\rVert} g_i,

    with g the gradient of the same divergence near :math:`\theta`, by weight matrices i; biases and BatchNorm's weights
    stay. Only samples that are classified right count. The draw's two passes through the network itself update
    BatchNorm's running statistics towards memory, as in the authors' code; ``extra_draw_moves_statistics=False`` of the
    method is the control that freezes them. Needs no task boundaries and stores nothing.

    The divergence has no gradient at :math:`\theta`, so g is taken after a random step of ``noise`` times the norm of
    each matrix. The authors' :math:`10^{-20}` is lost in the rounding of single precision.

    Args:
        alpha: Weight of the term. Published: 0.005 to 0.1, with ER 0.1 (CIFAR-10, 100 samples).
        gamma: Size of the perturbation. Published: 0.001 to 0.1, with ER 0.01.
        noise: See above.
        apply_from_task: First task, counted from 1, in which the term is added.
    """

    facts = Facts("star", "STAR", "[Eskandar et al. 2025](https://arxiv.org/abs/2503.01595)")

    def __init__(self, alpha: float = 0.1, gamma: float = 0.01, noise: float = 1e-3, apply_from_task: int = 1) -> None:
        super().__init__(alpha=alpha, apply_from_task=apply_from_task)
        check_not_negative(gamma=gamma)
        check_positive(noise=noise)
        self.gamma, self.noise = gamma, noise

    def soft_labels(self, samples: Samples, probabilities: Tensor) -> Tensor:
        """The current predictions."""
        return probabilities

    def add_to(self, loss: ReplayLoss, method: Learner, current: Samples) -> ReplayLoss:
        """The method's loss with the divergence, in steps with replay."""
        if loss.rehearsed is None or self.alpha == 0 or method.tasks_seen < self.apply_from_task:
            return loss
        drawn = method.draw_memory(generator=self.streams[DRAWS])
        return loss if drawn is None else loss.with_term(lambda: self.alpha * self.divergence(method, drawn))

    def divergence(self, method: Learner, samples: Samples) -> Tensor:
        """This rank's term of the mean divergence between the network and the perturbed one."""
        with torch.no_grad():
            now = method.logits_of(samples, is_extra=True).log_softmax(dim=1)
        is_right = (now.argmax(dim=1) == samples.labels).to(now.dtype)
        weights = is_right / sum_across_ranks([is_right.sum()])[0].clamp_min(1)
        offsets = self.perturbation(FrozenNetwork(method.network, method.moved_parameters), samples, now, weights)
        own = dict(method.named_parameters())
        moved = {f"method.{name}": own[name] + offset for name, offset in offsets.items()}
        return divergence(now, functional_call(_ExtraLogits(method), moved, (samples,)), weights)

    def perturbation(self, network: FrozenNetwork, samples: Samples, now: Tensor, weights: Tensor) -> dict[str, Tensor]:
        """The offset of each weight matrix, the same on every rank."""
        matrices = {name: p for name, p in network.parameters.items() if p.dim() > 1}
        start = {}
        for name, p in matrices.items():
            noise = moved(torch.randn(p.shape, generator=self.streams[DRAWS], dtype=p.dtype), p.device)
            start[name] = (p + self.noise * p.norm() * noise / noise.norm()).requires_grad_()
        with torch.enable_grad(), torch.autocast(now.device.type, enabled=False):  # the noise needs full precision

            def changed() -> Tensor:
                return divergence(now, network({**network.parameters, **start}, samples.images), weights)

            _, gradients = gradient_of_sum([changed], list(start.values()))
        found = zip(matrices.items(), gradients, strict=True)
        return {
            name: self.gamma * p.norm() * functional.normalize(g.flatten(), dim=0).view_as(p)
            for (name, p), g in found
            if g is not None
        }


class _ExtraLogits(nn.Module):
    """A method as a function of an additional draw, so that its parameters can be replaced for one call."""

    def __init__(self, method: Learner) -> None:
        super().__init__()
        self.method = method

    def forward(self, samples: Samples) -> Tensor:
        logits: Tensor = self.method.logits_of(samples, is_extra=True)
        return logits


def divergence(now: Tensor, logits: Tensor, weights: Tensor) -> Tensor:
    """The weighted sum of Kullback-Leibler divergences from given log-probabilities to those of logits.

    >>> now = torch.tensor([[0.5, 0.5]]).log()
    >>> divergence(now, torch.tensor([[0.2, 0.8]]).log(), torch.ones(1))
    tensor(0.2231)
    """
    return (weights * (now.exp() * (now - logits.log_softmax(dim=1))).sum(dim=1)).sum()
