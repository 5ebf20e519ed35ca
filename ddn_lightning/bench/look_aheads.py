"""The modes of the hypergradient against the naive way: a virtual step that autograd unrolls."""

from collections.abc import Callable
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional

from ddn_lightning.bench.subject import Subject, Workload
from ddn_lightning.distill.data_distill_net import DataDistillNet
from ddn_lightning.distill.hypergradient import FrozenNetwork
from ddn_lightning.learner import Learner
from ddn_lightning.methods.er import ER
from ddn_lightning.samples import Samples

Mode = Literal["exact", "matching", "head", "step"]
MODES: tuple[Mode, ...] = get_args(Mode)


class UnrolledNet(DataDistillNet):
    """Data-Distill-Net by a second-order graph: the thing to beat."""

    def outer_loss(self, method: Learner, inner: Samples, outer: list[Samples]) -> Tensor:
        """The outer loss itself, at parameters that depend on the labels."""
        network = FrozenNetwork(method.network)
        leaves = {name: parameter.requires_grad_() for name, parameter in network.parameters.items()}
        loss = self.learned_inner_loss(inner, network(leaves, inner.images))
        gradients = torch.autograd.grad(loss, list(leaves.values()), create_graph=True)
        lr = method.current_lr
        moved = {name: p - lr * g for (name, p), g in zip(leaves.items(), gradients, strict=True)}
        return network.loss(moved, outer)


class LookAheads:
    """An update of G by each mode, and unrolled.

    Args:
        workload: What it works on.
    """

    def __init__(self, workload: Workload) -> None:
        self.unrolled = Subject(ER, workload, UnrolledNet())
        self.by_mode = Subject(ER, workload, DataDistillNet())
        self.updates: dict[str, Callable[[], None]] = {"unrolled": self.unrolled.update}
        self.updates |= {mode: partial(self._update, mode) for mode in MODES}

    def _update(self, mode: Mode) -> None:
        assert isinstance(self.by_mode.method.distiller, DataDistillNet)
        self.by_mode.method.distiller.lookahead = mode
        self.by_mode.update()


def distances(reference: Subject) -> dict[str, dict[str, float]]:
    """How far each mode's gradient is from the unrolled one, on the same batches: relative error and cosine."""
    distiller = reference.method.distiller
    assert isinstance(distiller, UnrolledNet)
    current = reference.method.augment(reference.batch)
    reference.step()  # leaves the gradient of a step behind, which the mode of that name takes
    inner, outer = distiller.inner_batch(reference.method), distiller.outer_batch(reference.method, current)
    assert inner is not None
    weights = list(distiller.generator_net.parameters())

    def gradient(value: Tensor) -> Tensor:
        return torch.cat([g.flatten() for g in torch.autograd.grad(value, weights)]).double()

    expected = gradient(distiller.outer_loss(reference.method, inner, outer))
    errors = {"unrolled": {"relative_error": 0.0, "cosine": 1.0}}
    for mode in MODES:
        distiller.lookahead = mode
        found = gradient(DataDistillNet.outer_loss(distiller, reference.method, inner, outer))
        errors[mode] = {
            "relative_error": float((found - expected).norm() / expected.norm()),
            "cosine": float(functional.cosine_similarity(found, expected, dim=0)),
        }
    return errors
