"""Alternatives to Data-Distill-Net that were measured and not adopted; their rows in ``measured.csv`` can be repeated.

Each overrides a few lines and is run by its import path:
``ddn fit ... --model.distiller study.other_readings.WithinMixture``. *Readings* are other
interpretations of the paper; *variants* go beyond it.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ddn_lightning.distill.data_distill_net import DataDistillNet, multilayer_perceptron
from ddn_lightning.distill.hypergradient import (
    ForwardPass,
    FrozenNetwork,
    LookAhead,
    LossOfParameters,
    Parameters,
    random_state,
)
from ddn_lightning.distill.label_distiller import DRAWS, LabelDistiller, one_hot
from ddn_lightning.distill.learner import Learner
from ddn_lightning.distill.replay_loss import ReplayLoss
from ddn_lightning.networks.batch_statistics import frozen_layers, measure
from ddn_lightning.networks.gradients import ObservedTerm, evaluating
from ddn_lightning.samples import Samples, concatenate, cross_entropy


class WithinMixture(DataDistillNet):
    """Reading: G is trained as a part of Eq. 8, on the same labels as the classifier."""

    def labels_to_learn(self, samples: Samples, probabilities: Tensor) -> Tensor:
        """Labels by Eq. 8."""
        return self.soft_labels(samples, probabilities)


class OwnPrediction(LabelDistiller):
    """Half hard label, half the network's prediction among the classes of earlier tasks; not learned."""

    def soft_labels(self, samples: Samples, probabilities: Tensor) -> Tensor:
        """Predictions restricted to old classes; the hard label where their probability is zero."""
        hard = one_hot(samples, probabilities)
        old = probabilities * self.is_old_class
        total = old.sum(dim=1, keepdim=True)
        return (hard + torch.where(total > 0, old / total, hard)) / 2


class MovingNetwork(FrozenNetwork):
    """Forward passes that update the module's running statistics."""

    def __call__(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """Outputs with the given parameters."""
        outputs: Tensor = functional_call(self.module, dict(parameters), (inputs,))
        return outputs


class MovedByLookAhead(DataDistillNet):
    """Reading: the look-ahead uses the network itself and so updates BatchNorm's running statistics."""

    def frozen(self, network: nn.Module, moved: Iterable[Tensor]) -> FrozenNetwork:
        """The network with its own buffers."""
        return MovingNetwork(network, moved)


class OneOuterBatch(DataDistillNet):
    """Variant: the outer loss forwards the incoming batch and the draw from memory in one batch."""

    def outer_batch(self, method: Learner, current: Samples) -> list[Samples]:
        """All parts in one batch."""
        return [concatenate(super().outer_batch(method, current))]


class CalibratedNetwork(FrozenNetwork):
    """Losses in evaluation mode, with BatchNorm statistics of the last part, the draw from memory."""

    def losses(self, parts: Sequence[Samples]) -> list[LossOfParameters]:
        """The mean cross-entropy of each part, normalised by the last."""
        statistics = measure(self.module, self.module, [parts[-1].images], exclude=frozen_layers(self.module))

        def loss_of(part: Samples) -> LossOfParameters:
            def loss(parameters: Parameters) -> Tensor:
                with evaluating(self.module), torch.enable_grad():
                    logits = functional_call(self.module, {**parameters, **statistics}, (part.images,))
                return cross_entropy(logits, part)

            return loss

        return [loss_of(part) for part in parts]


class CalibratedOuter(DataDistillNet):
    """Variant: the outer loss uses the memory's BatchNorm statistics, as a calibrated evaluation does."""

    def frozen(self, network: nn.Module, moved: Iterable[Tensor]) -> FrozenNetwork:
        """The network with a calibrated outer loss."""
        return CalibratedNetwork(network, moved)


class DisjointHalves(DataDistillNet):
    """Variant: the virtual step uses the even slots of the memory, the outer loss the odd ones."""

    def inner_batch(self, method: Learner) -> Samples | None:
        """A draw from the even slots."""
        return _draw_half(method, 0)

    def outer_batch(self, method: Learner, current: Samples) -> list[Samples]:
        """The incoming batch and, from the second task on, a draw from the odd slots."""
        memory = _draw_half(method, 1) if method.task else None
        return [current] if memory is None else [current, memory]


class UnseenOuter(DataDistillNet):
    """Variant: G learns before the classifier's step, with an outer loss on a batch not yet trained on."""

    def before_step(self, method: Learner, current: Samples) -> None:
        """Update G on the incoming batch."""
        super().update(method, current)

    def update(self, method: Learner, current: Samples) -> None:
        """Do nothing: :meth:`before_step` has updated G."""


class SeesHardLabel(DataDistillNet):
    """Variant: G also gets the hard label as input."""

    def build_net(self, num_classes: int) -> nn.Sequential:
        """G: from predictions and hard labels to the logits of labels."""
        return multilayer_perceptron(2 * num_classes, self.hidden_dim, num_classes)

    def generated(self, net: nn.Module, samples: Samples, probabilities: Tensor) -> Tensor:
        """The output of G for predictions and hard labels."""
        return super().generated(net, samples, torch.cat([probabilities, one_hot(samples, probabilities)], dim=1))


class FreeShare(DataDistillNet):
    """Variant: G also learns its share of each label, between 0 and 1, instead of one half."""

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
        """The labels, which contain the hard part already."""
        return labels


class NoExtraPass(DataDistillNet):
    """Variant: a look-ahead of the last layer, on the draw that the classifier replays anyway.

    Uses the classifier's gradient as the outer gradient, and the inner batch and features of its step: labels are
    learned without any forward pass of the network. ``outer`` has no effect.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._features = torch.empty(0)  # the last inputs of the head
        self._rehearsed: tuple[Samples, Tensor, Tensor] | None = None  # samples, their logits and features

    def begin_fit(self, method: Learner) -> None:
        """Record the inputs of the head."""
        super().begin_fit(method)
        method.head.register_forward_pre_hook(self._record_features)

    def _record_features(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._features = inputs[0].detach()

    def _soft_loss(self, samples: Samples, logits: Tensor) -> Tensor:
        self._rehearsed = samples, logits.detach(), self._features.to(logits.dtype)
        return super()._soft_loss(samples, logits)

    def inner_batch(self, method: Learner) -> Samples | None:
        """The samples that the classifier has just replayed with soft labels."""
        return None if self._rehearsed is None else self._rehearsed[0]

    def outer_batch(self, method: Learner, current: Samples) -> list[Samples]:
        """The incoming batch, used for logging only."""
        return [current]

    def look_ahead(self, method: Learner, inner: Samples, outer: list[Samples]) -> LookAhead:
        """The features of the step, forwarded through the head's gradient."""
        assert self._rehearsed is not None
        _, logits, features = self._rehearsed
        self._rehearsed = None
        gradient = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in method.head.named_parameters()}
        return LookAhead(logits, functional_call(method.head, gradient, (features,)))


class DelayedOnReplay(DataDistillNet):
    """Variant of the delayed update: its inner batch is the step's own replayed one, also in the first task.

    It is judged as if its soft labels had been added to the real step, to first order in ``alpha``.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"lookahead": "delayed", **kwargs})

    def add_to(self, loss: ReplayLoss, method: Learner, current: Samples) -> ReplayLoss:
        """Learn from the loss without soft labels, then note this step."""
        rehearsed, logits = loss.rehearsed, loss.memory_logits
        if rehearsed is None or logits is None:
            return loss
        forward = ForwardPass(logits.detach(), random_state(method.device))

        def observe(value: Tensor, gradients: Sequence[Tensor | None]) -> None:
            self._learn_from_next(method, value, gradients)
            if self.is_due(method):
                self._remember(method, rehearsed, forward)

        nothing = ObservedTerm(lambda: 0 * method.moved_parameters[0].sum(), observe)
        return super().add_to(loss.with_term(nothing), method, current)

    def old_memory_term(self, method: Learner, old: Samples) -> Callable[[], Tensor]:
        """The term alone."""
        return LabelDistiller.old_memory_term(self, method, old)


def _draw_half(method: Learner, half: int) -> Samples | None:
    generator = method.streams[DRAWS]
    slots = method.memory.slots[half::2]
    chosen = slots[torch.randperm(len(slots), generator=generator)[: method.replay_batch_size]]
    return method.stored(chosen, generator) if len(chosen) else None
