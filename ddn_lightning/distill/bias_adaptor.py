"""The continual bias adaptor: a small network that corrects the logits in training and is left out for predictions."""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from ddn_lightning.distill import hypergradient
from ddn_lightning.distill.bilevel_distiller import BilevelDistiller
from ddn_lightning.distill.data_distill_net import grow_net, multilayer_perceptron, output_rows
from ddn_lightning.distill.hypergradient import LookAhead
from ddn_lightning.distill.label_distiller import DRAWS
from ddn_lightning.distill.learner import Facts, Learner
from ddn_lightning.distill.replay_loss import ReplayLoss
from ddn_lightning.errors import ConfigurationError, check_positive
from ddn_lightning.samples import Samples, concatenate, cross_entropy


class BiasAdaptor(BilevelDistiller):
    r"""CBA (Wang et al., ICCV 2023, https://arxiv.org/abs/2308.06925), for any replay method.

    The method's loss takes, instead of the network's logits z,

    .. math:: \tilde z = z + \alpha\, g(\mathrm{softmax}(z)),

    so that the adaptor g can absorb the bias towards new classes; predictions are made without it. Before a step, g is
    updated by a look-ahead as in DDN: a virtual step of the classifier on the adapted loss of the incoming batch and of
    memory must lower the loss, *not* adapted, of another draw from memory. Where DDN learns the labels of a term that
    it adds, CBA learns a correction of the terms that there are. The method's loss has no gradient through g.

    It needs task boundaries only to begin with the second task, and stores g. The virtual step is one of the last
    layer, as the authors take it, so an update adds forward passes on three batches: with one per step, a step of ER
    costs 1.5 of ER's. Readings: the virtual step has
    its own draw from memory, forwarded with the incoming batch in one mean; it and the outer loss are cross-entropies
    whatever the method's loss, where the authors' on DER++ also have its distance to stored logits; all terms of the
    method's loss see adapted logits, where theirs leave out CLS-ER's distance to its averages. Offline, their incoming
    batches do not move BatchNorm's running statistics (``running_statistics="memory"`` here). They also apply the
    untrained g, which is near zero, in the first task. :meth:`soft_labels`, the adapted predictions, are for figures.

    Args:
        lr: Learning rate of Adam. Published: 0.001 for CIFAR-10, 0.01 for CIFAR-100 and Tiny-ImageNet; 0.0001
            there, if offline on DER++ or CLS-ER.
        hidden_dim: Size of g's hidden layer. Published: 256.
        update_every: Classifier steps per update. Published: 5.
        alpha: Weight of the correction. 0 is exactly the method alone.
        apply_from_task: First task, counted from 1, in which g is learned and applied.
    """

    facts = Facts(
        key="cba",
        title="CBA",
        reference="[Wang et al. 2023](https://arxiv.org/abs/2308.06925)",
        stores="a small network",
        cost="at each update forward passes on three batches",
    )

    adaptor: nn.Sequential

    def __init__(
        self,
        lr: float = 1e-3,
        hidden_dim: int = 256,
        update_every: int = 1,
        alpha: float = 1.0,
        apply_from_task: int = 2,
    ) -> None:
        super().__init__(lr, update_every=update_every, alpha=alpha, apply_from_task=apply_from_task)
        check_positive(hidden_dim=hidden_dim)
        self.hidden_dim = hidden_dim

    def build(self, num_classes: int, buffer_size: int) -> None:
        """Create g."""
        super().build(num_classes, buffer_size)
        self.adaptor = multilayer_perceptron(num_classes, self.hidden_dim, num_classes, hidden_layers=1)

    def grow(self, num_classes: int) -> None:
        """Change the number of classes; the logits of new ones are not corrected yet."""
        known = len(self.is_old_class)
        super().grow(num_classes)
        new = torch.zeros_like(output_rows(self.adaptor)[0])
        grow_net(self.adaptor, known, num_classes, new, type(self).__name__)

    def check(self, method: Learner) -> None:
        """Refuse an optimizer that leaves out the last layer."""
        super().check(method)
        if not set(method.head.parameters()) & set(method.moved_parameters):
            raise ConfigurationError(
                f"{type(self).__name__} needs an optimizer that moves the head, got one without it"
            )

    def configure_optimizer(self) -> torch.optim.Optimizer:
        """Adam on g."""
        return torch.optim.Adam(self.adaptor.parameters(), self.lr)

    def adapted(self, logits: Tensor, method: Learner) -> Tensor:
        """The corrected logits."""
        if self.alpha == 0 or method.tasks_seen < self.apply_from_task:
            return logits
        with torch.no_grad():
            correction = self.correction(logits.softmax(dim=1))
        return logits + correction

    def correction(self, probabilities: Tensor) -> Tensor:
        """What is added to the logits (batch, num_classes)."""
        correction: Tensor = self.alpha * self.adaptor(probabilities)
        return correction

    def soft_labels(self, samples: Samples, probabilities: Tensor) -> Tensor:
        """The adapted predictions."""
        return (probabilities.log() + self.correction(probabilities)).softmax(dim=1)

    def add_to(self, loss: ReplayLoss, method: Learner, current: Samples) -> ReplayLoss:
        """The loss as it is: the method has computed it from adapted logits."""
        return loss

    def before_step(self, method: Learner, current: Samples) -> None:
        """Update g on the incoming batch and two draws from memory."""
        if not self.is_due(method) or method.tasks_seen < self.apply_from_task:
            return
        inner, outer = (method.draw_memory(generator=method.streams[DRAWS]) for _ in range(2))
        if inner is not None and outer is not None:
            self.learn(method, concatenate([current, inner]), [outer])

    def update(self, method: Learner, current: Samples) -> None:
        """Do nothing: :meth:`before_step` has updated g."""

    def look_ahead(self, method: Learner, inner: Samples, outer: list[Samples]) -> LookAhead:
        """A virtual step of the last layer only."""
        return look_ahead_of_head(self, method, inner, outer)

    def learned_inner_loss(self, inner: Samples, logits: Tensor, learn: bool = True) -> Tensor:
        """The loss of the virtual step: adapted cross-entropy, twice its mean as there are two batches."""
        with torch.set_grad_enabled(learn):
            correction = self.correction(logits.detach().softmax(dim=1))
        return 2 * cross_entropy(logits + correction, inner)

    def terms_to_log(self, method: Learner, inner: Samples, look_ahead: LookAhead, lr: float) -> dict[str, Tensor]:
        """The mean correction of old and of new classes: their difference is the bias that g absorbs."""
        correction = self.correction(look_ahead.logits.softmax(dim=1))
        groups = {"old_classes": self.is_old_class, "new_classes": method.is_seen_class & ~self.is_old_class}
        return {
            f"correction/{name}": inner.mean((correction * of).sum(dim=1)) / of.sum().clamp_min(1)
            for name, of in groups.items()
        }


def look_ahead_of_head(distiller: BilevelDistiller, method: Learner, inner: Samples, outer: list[Samples]) -> LookAhead:
    """A virtual step of the last layer only: no gradient goes through the backbone."""
    backbone, head = (distiller.frozen(part, method.moved_parameters) for part in (method.backbone, method.head))

    @torch.no_grad()
    def features(samples: Samples) -> Samples:
        return replace(samples, images=backbone(backbone.parameters, samples.images))

    loss = partial(distiller.learned_inner_loss, inner, learn=False)
    parts = [features(part) for part in outer]
    return hypergradient.exact(head, features(inner), loss, parts, method.current_lr)
