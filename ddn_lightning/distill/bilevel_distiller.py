"""Soft labels learned by bi-level optimization."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal

import torch
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn

from ddn_lightning.distill import hypergradient
from ddn_lightning.distill.hypergradient import ForwardPass, FrozenNetwork, LookAhead
from ddn_lightning.distill.label_distiller import DRAWS, LabelDistiller, one_hot, soft_cross_entropy
from ddn_lightning.distill.learner import Learner
from ddn_lightning.distill.past_step import PastStep
from ddn_lightning.distill.precision import check_precision
from ddn_lightning.distributed import sum_across_ranks
from ddn_lightning.errors import ConfigurationError, check_positive, note_once
from ddn_lightning.lightning_internals import is_logged
from ddn_lightning.networks.gradients import ObservedTerm, descend, moved_along
from ddn_lightning.samples import Samples, cross_entropy


class BilevelDistiller(LabelDistiller):
    """Learns labels such that a classifier step on them also lowers the loss on everything seen (Eq. 6).

    ``lookahead="exact"`` is Algorithm 2 of the DDN paper. *Inner*: a virtual step of plain SGD, with the classifier's
    learning rate but neither its momentum, weight decay nor clipping, on a draw from memory, with hard labels plus
    ``alpha`` times soft ones. *Outer*: the hard-label loss of the stepped network on the incoming batch and on memory,
    whose gradient updates the labels. Override :meth:`inner_batch`, :meth:`inner_loss` or :meth:`outer_batch` for
    another reading of the paper.

    ``lookahead="delayed"`` takes the classifier's own steps instead. *Inner*: its real step, with the soft labels of
    the old memory. *Outer*: the method's loss in the next step, without soft labels, whose gradient training computes
    anyway. It judges the labels by data that have not been trained on, costs one forward pass, and follows SGD, Adam
    and AdamW with momentum and weight decay, but not the clipping of gradients.

    Args:
        lr: Learning rate of Adam.
        lookahead: See above.
        update_every: Classifier steps per update.
        outer: Samples of the outer loss from the second task on: the incoming batch and a draw from the whole memory or
            from that of earlier tasks, or memory only. Not used by ``delayed``.
        **kwargs: Arguments of :class:`LabelDistiller`.
    """

    past: PastStep | None = None  # of the delayed update

    def __init__(
        self,
        lr: float = 1e-3,
        lookahead: Literal["exact", "delayed"] = "exact",
        update_every: int = 1,
        outer: Literal["current_and_memory", "memory", "current_and_old_memory"] = "current_and_memory",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_positive(lr=lr, update_every=update_every)
        if lookahead == "delayed" and self.memory != "old":
            raise ConfigurationError(
                f"lookahead=delayed needs memory=old, whose soft labels have a draw of their own, got {self.memory}"
            )
        self.lr = lr
        self.lookahead = lookahead
        self.update_every = update_every
        self.outer = outer

    def begin_fit(self, method: Learner) -> None:
        """Refuse too low a precision."""
        super().begin_fit(method)
        self.past = None
        check_precision(method.trainer, type(self).__name__, "gradients")

    def begin_task(self, is_old_class: Tensor) -> None:
        """Forget the last step of the previous task: the optimizer starts afresh."""
        super().begin_task(is_old_class)
        self.past = None

    def training_state(self) -> dict[str, Any]:
        """The past step of the delayed update, if there is one."""
        return {} if self.past is None else {"past": self.past.state()}

    def load_training_state(self, state: dict[str, Any], device: torch.device) -> None:
        """Restore the past step."""
        self.past = PastStep.of(state["past"], device) if "past" in state else None

    def check(self, method: Learner) -> None:
        """Refuse an optimizer whose step the look-ahead does not know."""
        super().check(method)
        classifier, *others = method.trainer.optimizers
        name, kind = type(self).__name__, type(classifier).__name__
        if self.lookahead == "delayed":
            if not isinstance(classifier, torch.optim.SGD | torch.optim.Adam):
                raise ConfigurationError(f"{name} needs SGD, Adam or AdamW as the classifier's optimizer, got {kind}")
            if self.alpha and str(method.trainer.precision) == "bf16-mixed":
                _check_forward_mode(method)
        elif not isinstance(classifier, torch.optim.SGD):
            raise ConfigurationError(
                f"{name} needs SGD as the classifier's optimizer, since its virtual step is one of SGD, got {kind}. "
                "lookahead=delayed also knows the steps of Adam and AdamW"
            )
        elif len(rates := _rates(classifier)) > 1:
            raise ConfigurationError(f"{name} needs one learning rate for the virtual step, got {rates}")
        if not others:
            raise ConfigurationError(
                f"configure_optimizers must return two optimizers with {name}, the classifier's and "
                "self.distiller.configure_optimizer(), got one"
            )

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
        """Draw both batches and learn from them, if it is due; the delayed update learns in ``gradients``."""
        if self.lookahead == "delayed" or not self.is_due(method) or (inner := self.inner_batch(method)) is None:
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
        with torch.autocast(method.device.type, enabled=False):  # the difference needs single precision
            self._step(method, self.surrogate_of(method, inner, outer))

    def surrogate_of(self, method: Learner, inner: Samples, outer: list[Samples]) -> Tensor:
        """A surrogate whose gradient is that of the outer loss after a virtual step."""
        look_ahead = self.look_ahead(method, inner, outer)
        if look_ahead.virtual_step is not None:
            self._note_loss(method, look_ahead.virtual_step.outer_loss, "the outer loss")
        if is_logged(method.trainer):
            with isolate_rng():  # of dropout: what is logged does not change the run
                self._log(
                    method, inner, look_ahead, method.current_lr, self._outer_terms(method, inner, outer, look_ahead)
                )
        return hypergradient.surrogate(look_ahead, partial(self.learned_inner_loss, inner), method.current_lr)

    def look_ahead(self, method: Learner, inner: Samples, outer: list[Samples]) -> LookAhead:
        """The logits of the inner batch and their tangent along the outer gradient."""
        network = self.frozen(method.network, method.moved_parameters)
        loss = partial(self.learned_inner_loss, inner, learn=False)
        return hypergradient.exact(network, inner, loss, outer, method.current_lr)

    def old_memory_term(self, method: Learner, old: Samples) -> Callable[[], Tensor]:
        """As in the base class; the delayed update learns from the gradient of the terms before it."""
        if self.lookahead != "delayed":
            return super().old_memory_term(method, old)

        def term() -> Tensor:
            state = hypergradient.random_state(method.device)
            with hypergradient.full_float32():
                logits = method.logits_of(old, is_extra=True)
            if self.is_due(method):
                self._remember(method, old, ForwardPass(logits.detach(), state))
            return self._soft_loss(old, logits)

        return ObservedTerm(term, partial(self._learn_from_next, method))

    def _remember(self, method: Learner, inner: Samples, forward: ForwardPass) -> None:
        parameters = FrozenNetwork(method.network, method.moved_parameters).parameters
        copies = list(map(torch.empty_like, parameters.values()))
        torch._foreach_copy_(copies, list(parameters.values()))
        rates = [float(group["lr"]) for group in method.trainer.optimizers[0].param_groups]
        self.past = PastStep(inner, forward, dict(zip(parameters, copies, strict=True)), rates)

    def _learn_from_next(self, method: Learner, value: Tensor, gradients: Sequence[Tensor | None]) -> None:
        """Take one step of Adam on the loss of this step, by the labels of the past one."""
        past, self.past = self.past, None
        if past is None:
            return
        pairs = [(p, g) for p, g in zip(method.moved_parameters, gradients, strict=True) if g is not None]
        value, *summed = sum_across_ranks([value, *(gradient for _, gradient in pairs)])
        gradient_of = dict(zip((parameter for parameter, _ in pairs), summed, strict=True))
        moves = moved_along(method.trainer.optimizers[0], past.rates, gradient_of)
        network = FrozenNetwork(method.network, method.moved_parameters)
        known = dict(method.network.named_parameters())
        direction = {name: moves.get(known[name], torch.zeros_like(p)) for name, p in past.parameters.items()}
        found = hypergradient.tangent(network, past.parameters, past.inner.images, direction, past.forward)
        look_ahead = LookAhead(past.forward.logits.to(found.dtype), found)
        self._note_loss(method, value, "the outer loss")
        with torch.autocast(method.device.type, enabled=False):
            if is_logged(method.trainer):
                self._log(method, past.inner, look_ahead, 1.0, {"outer_loss_after": value})
            loss = partial(self.learned_inner_loss, past.inner)
            self._step(method, hypergradient.surrogate(look_ahead, loss, lr=1.0))

    def learned_inner_loss(self, inner: Samples, logits: Tensor, learn: bool = True) -> Tensor:
        """The inner loss with the labels to learn; if ``learn``, differentiable by their parameters."""
        with torch.set_grad_enabled(learn):
            labels = self.labels_to_learn(inner, logits.detach().softmax(dim=1))
        return self.inner_loss(logits, inner, labels)

    def frozen(self, network: nn.Module, moved: Iterable[Tensor]) -> FrozenNetwork:
        """The network or a part of it, as used for the look-ahead, which moves these parameters."""
        return FrozenNetwork(network, moved)

    def _step(self, method: Learner, surrogate: Tensor) -> None:
        optimizer = method.trainer.optimizers[1]  # unwrapped: its steps must not count towards global_step
        value = self._descend(surrogate, optimizer)
        self._note_loss(method, value, "the hypergradient")

    def _note_loss(self, method: Learner, value: Tensor, what: str) -> None:
        rates = {"lr": method.current_lr, "distiller.lr": self.lr}
        method.note_loss(value, f"{what} of {type(self).__name__}", **rates)

    def _descend(self, value: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
        for group in optimizer.param_groups:  # constructor arguments override restored optimizer state
            group["lr"] = self.lr
        return descend(value, optimizer)

    def _outer_terms(
        self, method: Learner, inner: Samples, outer: list[Samples], look_ahead: LookAhead
    ) -> dict[str, Tensor]:
        """The outer loss before and after the virtual step, to log."""
        network = FrozenNetwork(method.network, method.moved_parameters)
        taken = look_ahead.virtual_step
        if taken is None:  # log where a virtual step would lead
            loss = partial(self.learned_inner_loss, inner, learn=False)
            taken = hypergradient.virtual_step(network, inner, loss, outer, method.current_lr)
        with torch.no_grad():
            (before,) = sum_across_ranks([network.loss(network.parameters, outer)])
        return {
            "outer_loss_before": before,
            "outer_loss_after": taken.outer_loss,
            "gradient_cosine": taken.cosine,
        }

    @torch.no_grad()
    def _log(
        self, method: Learner, inner: Samples, look_ahead: LookAhead, lr: float, outer_terms: dict[str, Tensor]
    ) -> None:
        """Log what the labels look like and how they change the outer loss."""
        terms = {
            "inner_loss": self.learned_inner_loss(inner, look_ahead.logits, learn=False),
            **self.terms_to_log(method, inner, look_ahead, lr),
        }
        values = dict(zip(terms, sum_across_ranks(list(terms.values())), strict=True))
        method.log_dict({f"distill/{name}": value for name, value in (values | outer_terms).items()})

    def terms_to_log(self, method: Learner, inner: Samples, look_ahead: LookAhead, lr: float) -> dict[str, Tensor]:
        """This rank's parts of what to log about the labels."""
        labels = self.labels_to_learn(inner, look_ahead.logits.softmax(dim=1))
        is_new = method.is_seen_class & ~self.is_old_class
        return {
            "gain_over_uniform": self._gain_over_uniform(inner, look_ahead, lr),
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


def _check_forward_mode(method: Learner) -> None:
    """Refuse a network with a layer that has no forward-mode derivative, by a trial on two black images."""
    network = FrozenNetwork(method.network)
    images = torch.zeros(2, *method.sequence.image_shape, device=method.device).to(method.dtype)
    on_device = [method.device] if method.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(on_device), torch.autocast(method.device.type, torch.bfloat16), torch.no_grad():
            hypergradient.by_dual_numbers(network, network.parameters, images, network.parameters)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise ConfigurationError(
            f"lookahead must be exact in mixed precision with {type(method.backbone).__name__}, which has no "
            f"forward-mode derivative, got delayed: {reason}"
        ) from error
