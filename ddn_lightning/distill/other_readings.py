"""Labels that were measured against Data-Distill-Net's and not kept, so that their lines in ``measured.csv`` repeat.

Each is an override of a few lines, and an example of how to try one's own:
``ddn fit ... --model.distiller ddn_lightning.distill.other_readings.WithinMixture``. *Readings* are what the paper's
text allows; *variants* go beyond it, and ask whether a learned label can earn its cost once BatchNorm's statistics are
those of the memory.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ddn_lightning.batch_statistics import measure
from ddn_lightning.distill.data_distill_net import DataDistillNet, multilayer_perceptron
from ddn_lightning.distill.distiller import DRAWS, LabelDistiller, one_hot
from ddn_lightning.distill.hypergradient import FrozenNetwork, LookAhead, LossOfParameters, Parameters
from ddn_lightning.evaluation import evaluating
from ddn_lightning.samples import Samples, concatenate, cross_entropy

if TYPE_CHECKING:
    from ddn_lightning.methods.base import ReplayMethod


class WithinMixture(DataDistillNet):
    """Reading: G is trained as the part of Eq. 8 that it is, on the labels that the classifier gets."""

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


class MovingNetwork(FrozenNetwork):
    """Forward passes that move the module's own running statistics."""

    def __call__(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """Outputs with these parameters instead of the module's."""
        outputs: Tensor = functional_call(self.module, dict(parameters), (inputs,))
        return outputs


class MovedByLookAhead(DataDistillNet):
    """Reading: the look-ahead goes through the network itself, and so moves BatchNorm's running statistics."""

    def frozen(self, network: nn.Module) -> FrozenNetwork:
        """The network with its own buffers."""
        return MovingNetwork(network)


class OneOuterBatch(DataDistillNet):
    """Variant: the outer loss forwards the incoming batch and the draw from memory together, as a test does."""

    def outer_batch(self, method: "ReplayMethod", current: Samples) -> list[Samples]:
        """All parts as one."""
        return [concatenate(super().outer_batch(method, current))]


class CalibratedNetwork(FrozenNetwork):
    """Losses with BatchNorm statistics of the last part, the draw from memory, in evaluation mode."""

    def losses(self, parts: Sequence[Samples]) -> list[LossOfParameters]:
        """The mean cross-entropy of each part, normalised by the last."""
        statistics = measure(self.module, self.module, [parts[-1].images])

        def loss_of(part: Samples) -> LossOfParameters:
            def loss(parameters: Parameters) -> Tensor:
                with evaluating(self.module), torch.enable_grad():
                    logits = functional_call(self.module, {**parameters, **statistics}, (part.images,))
                return cross_entropy(logits, part)

            return loss

        return [loss_of(part) for part in parts]


class CalibratedOuter(DataDistillNet):
    """Variant: the outer loss is normalised by memory's statistics, as a calibrated test is."""

    def frozen(self, network: nn.Module) -> FrozenNetwork:
        """The network whose outer loss is calibrated."""
        return CalibratedNetwork(network)


class DisjointHalves(DataDistillNet):
    """Variant: the virtual step sees the even slots of memory, and the outer loss the odd ones."""

    def inner_batch(self, method: "ReplayMethod") -> Samples | None:
        """A draw from the even slots."""
        return _drawn_from_half(method, 0)

    def outer_batch(self, method: "ReplayMethod", current: Samples) -> list[Samples]:
        """The incoming batch and, from the second task on, a draw from the odd slots."""
        memory = _drawn_from_half(method, 1) if method.task else None
        return [current] if memory is None else [current, memory]


class UnseenOuter(DataDistillNet):
    """Variant: G learns before the classifier's step, so that the outer loss is on a batch not yet trained on."""

    def before_step(self, method: "ReplayMethod", current: Samples) -> None:
        """The update, with what comes next."""
        super().update(method, current)

    def update(self, method: "ReplayMethod", current: Samples) -> None:
        """Nothing: the batch has been trained on."""


class SeesHardLabel(DataDistillNet):
    """Variant: G sees the hard label beside the prediction."""

    def build_net(self, num_classes: int) -> nn.Sequential:
        """G: from a prediction and a hard label to the logits of a label."""
        return multilayer_perceptron(2 * num_classes, self.hidden_dim, num_classes)

    def generated(self, net: nn.Module, samples: Samples, probabilities: Tensor) -> Tensor:
        """What G makes of both."""
        return super().generated(net, samples, torch.cat([probabilities, one_hot(samples, probabilities)], dim=1))


class FreeShare(DataDistillNet):
    """Variant: G also says how much of each label is its own, between nothing and all, instead of one half."""

    def build_net(self, num_classes: int) -> nn.Sequential:
        """G, with one more output: the logit of its share."""
        return multilayer_perceptron(num_classes, self.hidden_dim, num_classes + 1)

    def generated(self, net: nn.Module, samples: Samples, probabilities: Tensor) -> Tensor:
        """The whole label, hard part included."""
        outputs = net(probabilities)
        share = outputs[:, -1:].sigmoid()
        labels: Tensor = share * outputs[:, :-1].softmax(dim=1) + (1 - share) * one_hot(samples, probabilities)
        return labels

    def completed(self, labels: Tensor, samples: Samples) -> Tensor:
        """Nothing is to be added."""
        return labels


class NoExtraPass(DataDistillNet):
    """Variant: ``lookahead="step"`` of the last layer, on the draw that the classifier rehearses anyway.

    The outer gradient is the classifier's own, and the inner batch with its features is left over from the step: the
    labels are learned without any forward pass of the network. ``lookahead`` and ``outer`` have no effect.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._features = torch.empty(0)  # the last that went into the head
        self._rehearsed: tuple[Samples, Tensor, Tensor] | None = None  # samples, their logits and features

    def begin_fit(self, method: "ReplayMethod") -> None:
        """Look at what goes into the head from now on."""
        super().begin_fit(method)
        method.head.register_forward_pre_hook(self._look_at)

    def _look_at(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._features = inputs[0].detach()

    def _soft_loss(self, samples: Samples, logits: Tensor) -> Tensor:
        self._rehearsed = samples, logits.detach(), self._features
        return super()._soft_loss(samples, logits)

    def inner_batch(self, method: "ReplayMethod") -> Samples | None:
        """What the classifier has just rehearsed with soft labels."""
        return None if self._rehearsed is None else self._rehearsed[0]

    def outer_batch(self, method: "ReplayMethod", current: Samples) -> list[Samples]:
        """The incoming batch, which nothing is computed on except for logging."""
        return [current]

    def _look_ahead(self, method: "ReplayMethod", inner: Samples, outer: list[Samples]) -> LookAhead:
        assert self._rehearsed is not None
        _, logits, features = self._rehearsed
        self._rehearsed = None
        along = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in method.head.named_parameters()}
        return LookAhead(logits, functional_call(method.head, along, (features,)))


def _drawn_from_half(method: "ReplayMethod", half: int) -> Samples | None:
    generator = method.streams[DRAWS]
    slots = torch.arange(half, len(method.memory), 2)
    chosen = slots[torch.randperm(len(slots), generator=generator)[: method.replay_batch_size]]
    return method.stored(chosen, generator) if len(chosen) else None
