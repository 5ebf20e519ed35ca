"""Soft labels learned by bi-level optimization."""

from collections.abc import Iterable
from functools import partial
from typing import Any, Literal

import torch
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn

from ddn_lightning.distill import hypergradient
from ddn_lightning.distill.hypergradient import FrozenNetwork, LookAhead
from ddn_lightning.distill.label_distiller import DRAWS, LabelDistiller, one_hot, soft_cross_entropy
from ddn_lightning.distill.precision import check_precision
from ddn_lightning.distributed import sum_across_ranks
from ddn_lightning.errors import ConfigurationError, check_positive
from ddn_lightning.learner import Learner
from ddn_lightning.lightning_internals import is_logged, syncs_batch_norm
from ddn_lightning.notes import note_once
from ddn_lightning.optimization import descend
from ddn_lightning.samples import Samples, cross_entropy


class BilevelDistiller(LabelDistiller):
    """Learns labels such that a classifier step on them also lowers the loss on everything seen (Eq. 6).

    Algorithm 2 of the DDN paper. *Inner*: a virtual step of plain SGD, with the classifier's learning rate but neither
    its momentum, weight decay nor clipping, on a draw from memory, with hard labels plus ``alpha`` times soft ones.
    *Outer*: the hard-label loss of the stepped network on the incoming batch and on memory, whose gradient updates the
    labels. Override :meth:`inner_batch`, :meth:`inner_loss` or :meth:`outer_batch` for another reading of the paper.

    Args:
        lr: Learning rate of Adam.
        lookahead: How to differentiate the outer loss: ``exact``, through a virtual step of all parameters; ``head``,
            through a step of the last layer only; ``matching``, with the outer gradient before the step; ``step``, with
            the classifier's last step instead of the outer gradient, by forward passes only.
        update_every: Classifier steps per update.
        outer: Samples of the outer loss from the second task on: the incoming batch and a draw from the whole memory or
            from that of earlier tasks, or memory only.
        **kwargs: Arguments of :class:`LabelDistiller`.
    """

    def __init__(
        self,
        lr: float = 1e-3,
        lookahead: Literal["exact", "head", "matching", "step"] = "exact",
        update_every: int = 1,
        outer: Literal["current_and_memory", "memory", "current_and_old_memory"] = "current_and_memory",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_positive(lr=lr, update_every=update_every)
        self.lr = lr
        self.lookahead = lookahead
        self.update_every = update_every
        self.outer = outer

    @property
    def needs_forward_mode(self) -> bool:
        """Whether the look-ahead uses the network's forward-mode derivative."""
        return self.lookahead in ("exact", "matching")

    def begin_fit(self, method: Learner) -> None:
        """Refuse too low a precision, and SyncBatchNorm, which has no forward-mode derivative."""
        super().begin_fit(method)
        check_precision(method.trainer, type(self).__name__, "gradients")
        if self.needs_forward_mode and _is_batch_norm_synchronised(method):
            raise ConfigurationError(
                f"lookahead must be head or step with synchronised BatchNorm, got {self.lookahead}: torch's "
                "SyncBatchNorm has no forward-mode derivative. Or leave out sync_batchnorm: running statistics agree "
                "on all devices without it"
            )

    def check(self, method: Learner) -> None:
        """Refuse an optimizer that the virtual SGD step does not approximate, and a network without the derivative."""
        super().check(method)
        classifier, *others = method.trainer.optimizers
        name = type(self).__name__
        if not isinstance(classifier, torch.optim.SGD):
            raise ConfigurationError(
                f"{name} needs SGD as the classifier's optimizer, since its virtual step is one of SGD, got "
                f"{type(classifier).__name__}"
            )
        if len(rates := _rates(classifier)) > 1:
            raise ConfigurationError(f"{name} needs one learning rate for the virtual step, got {rates}")
        if self.lookahead == "step" and type(self).before_step is not LabelDistiller.before_step:
            raise ConfigurationError(
                f"lookahead must be exact, head or matching with {name}, which learns before the classifier's step, "
                "got step"
            )
        if self.lookahead == "head" and not set(method.head.parameters()) & set(method.moved_parameters):
            raise ConfigurationError("lookahead must not be head where the optimizer leaves out the head, got head")
        if not others:
            raise ConfigurationError(
                f"configure_optimizers must return two optimizers with {name}, the classifier's and "
                "self.distiller.configure_optimizer(), got one"
            )
        if self.alpha and self.needs_forward_mode:
            _check_forward_mode(method, self.lookahead)

    def inner_batch(self, method: Learner) -> Samples | None:
        """The batch of the virtual step: a draw from memory."""
        return method.draw_memory(generator=method.streams[DRAWS])

    def labels_to_learn(self, samples: Samples, probabilities: Tensor) -> Tensor:
        """The labels of the virtual step: by default :meth:`soft_labels`, as for the classifier."""
        return self.soft_labels(samples, probabilities)

    def inner_loss(self, logits: Tensor, samples: Samples, labels: Tensor) -> Tensor:
        """The loss of the virtual step: hard labels plus ``alpha`` times soft ones."""
        return cross_entropy(logits, samples) + self.alpha * soft_cross_entropy(logits, samples, labels)

    def outer_batch(self, method: Learner, current: Samples) -> list[Samples]:
        """The batches of the outer loss; in the first task only the incoming batch."""
        if method.task == 0:
            return [current]
        tasks = method.old_tasks if self.outer == "current_and_old_memory" else None
        memory = method.draw_memory(tasks, generator=method.streams[DRAWS])
        parts = [memory] if self.outer == "memory" else [current, memory]
        return [part for part in parts if part is not None]

    def update(self, method: Learner, current: Samples) -> None:
        """Take one step of Adam on the outer loss after a virtual step."""
        if not self.is_due(method) or (inner := self.inner_batch(method)) is None:
            return
        self.learn(method, inner, self.outer_batch(method, current))

    def is_due(self, method: Learner) -> bool:
        """Whether to update in this step."""
        is_turn = method.trainer.global_step % self.update_every == 0
        return is_turn and self.alpha != 0 and method.current_lr != 0

    def learn(self, method: Learner, inner: Samples, outer: list[Samples]) -> None:
        """Take one step of Adam on the outer loss after a virtual step."""
        if len(rates := _rates(method.trainer.optimizers[0])) > 1:  # a callback has added parameters
            name = type(self).__name__
            note_once(f"the virtual step of {name} takes {method.current_lr} for all parameters, the real one {rates}")
        with torch.autocast(method.device.type, enabled=False):  # tangents in half precision are mostly noise
            value = self._descend(self.outer_loss(method, inner, outer), method.distiller_optimizer)
        self._note_loss(method, value, "the hypergradient")

    def outer_loss(self, method: Learner, inner: Samples, outer: list[Samples]) -> Tensor:
        """A surrogate whose gradient is that of the outer loss after a virtual step."""
        look_ahead = self._look_ahead(method, inner, outer)
        if look_ahead.virtual_step is not None:
            self._note_loss(method, look_ahead.virtual_step.outer_loss, "the outer loss")
        if is_logged(method.trainer):
            with isolate_rng():  # of dropout: what is logged does not change the run
                self._log(method, inner, outer, look_ahead)
        return hypergradient.surrogate(look_ahead, partial(self.learned_inner_loss, inner), method.current_lr)

    def learned_inner_loss(self, inner: Samples, logits: Tensor, learn: bool = True) -> Tensor:
        """The inner loss with the labels to learn; if ``learn``, differentiable by their parameters."""
        with torch.set_grad_enabled(learn):
            labels = self.labels_to_learn(inner, logits.detach().softmax(dim=1))
        return self.inner_loss(logits, inner, labels)

    def frozen(self, network: nn.Module, moved: Iterable[Tensor]) -> FrozenNetwork:
        """The network or a part of it, as used for the look-ahead, which moves these parameters."""
        return FrozenNetwork(network, moved)

    def _look_ahead(self, method: Learner, inner: Samples, outer: list[Samples]) -> LookAhead:
        moved = method.moved_parameters
        network = self.frozen(method.network, moved)
        loss = partial(self.learned_inner_loss, inner, learn=False)
        if self.lookahead == "step":
            parameters = method.network.named_parameters()
            gradients = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in parameters}
            return hypergradient.step(network, inner, gradients, method.current_lr)
        if self.lookahead == "head":
            parts = self.frozen(method.backbone, moved), self.frozen(method.head, moved)
            return hypergradient.head(*parts, inner, loss, outer, method.current_lr)
        mode = hypergradient.exact if self.lookahead == "exact" else hypergradient.matching
        return mode(network, inner, loss, outer, method.current_lr)

    def _note_loss(self, method: Learner, value: Tensor, what: str) -> None:
        rates = {"lr": method.current_lr, "distiller.lr": self.lr}
        method.note_loss(value, f"{what} of {type(self).__name__}", **rates)

    def _descend(self, value: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
        for group in optimizer.param_groups:  # constructor arguments override restored optimizer state
            group["lr"] = self.lr
        return descend(value, optimizer)

    @torch.no_grad()
    def _log(self, method: Learner, inner: Samples, outer: list[Samples], look_ahead: LookAhead) -> None:
        """Log what the labels look like and how they change the outer loss."""
        network = FrozenNetwork(method.network, method.moved_parameters)
        taken = look_ahead.virtual_step
        if taken is None:  # this mode takes no virtual step; log where it would lead
            loss = partial(self.learned_inner_loss, inner, learn=False)
            taken = hypergradient.virtual_step(network, inner, loss, outer, method.current_lr)
        terms = {
            "inner_loss": self.learned_inner_loss(inner, look_ahead.logits, learn=False),
            "outer_loss_before": network.loss(network.parameters, outer),
            **self.terms_to_log(method, inner, look_ahead),
        }
        values = dict(zip(terms, sum_across_ranks(list(terms.values())), strict=True))
        values |= {"outer_loss_after": taken.outer_loss, "gradient_cosine": taken.cosine}
        method.log_dict({f"distill/{name}": value for name, value in values.items()})

    def terms_to_log(self, method: Learner, inner: Samples, look_ahead: LookAhead) -> dict[str, Tensor]:
        """This rank's parts of what to log about the labels."""
        labels = self.labels_to_learn(inner, look_ahead.logits.softmax(dim=1))
        is_new = method.is_seen_class & ~self.is_old_class
        return {
            "gain_over_uniform": self._gain_over_uniform(inner, look_ahead, method.current_lr),
            "label_entropy": inner.mean(torch.special.entr(labels).sum(dim=1)),
            "label_mass/true": inner.mean(labels.gather(1, inner.labels[:, None])),
            "label_mass/old_classes": inner.mean(labels[:, self.is_old_class]),
            "label_mass/new_classes": inner.mean(labels[:, is_new]),
            "label_mass/unseen_classes": inner.mean(labels[:, ~method.is_seen_class]),
        }

    @torch.enable_grad()
    def _gain_over_uniform(self, inner: Samples, look_ahead: LookAhead, lr: float) -> Tensor:
        """How much lower the outer loss is than with labels whose soft half is uniform.

        To first order in the step, so that it costs nothing.
        """
        hard = one_hot(inner, look_ahead.logits)
        uniform = (hard + 1 / hard.shape[1]) / 2
        learned = hypergradient.surrogate(look_ahead, partial(self.learned_inner_loss, inner, learn=False), lr)
        even = hypergradient.surrogate(look_ahead, lambda logits: self.inner_loss(logits, inner, uniform), lr)
        return (even - learned).detach()


def _rates(optimizer: torch.optim.Optimizer) -> list[float]:
    """The learning rates of its parameter groups."""
    return sorted({float(group["lr"]) for group in optimizer.param_groups})


def _is_batch_norm_synchronised(method: Learner) -> bool:
    """Whether the network has SyncBatchNorm, or will have when Lightning has converted it."""
    kind = nn.modules.batchnorm._BatchNorm if syncs_batch_norm(method.trainer) else nn.SyncBatchNorm
    return any(isinstance(layer, kind) for layer in method.network.modules())


def _check_forward_mode(method: Learner, lookahead: str) -> None:
    """Refuse a network with a layer that has no forward-mode derivative, by a trial on two black images."""
    network = FrozenNetwork(method.network)
    images = torch.zeros(2, *method.sequence.image_shape, device=method.device).to(method.dtype)
    trial = Samples(images, torch.zeros(2, dtype=torch.long))
    on_device = [method.device] if method.device.type == "cuda" else []
    try:
        with torch.no_grad(), torch.random.fork_rng(on_device):
            hypergradient.logits_along(network, trial, network.parameters)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise ConfigurationError(
            f"lookahead must be head or step with {type(method.backbone).__name__}, which has no forward-mode "
            f"derivative, got {lookahead}: {reason}"
        ) from error
