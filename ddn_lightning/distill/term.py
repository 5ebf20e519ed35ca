"""What adds to a method's loss in each step, besides the method itself."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ddn_lightning.distill.learner import Learner
from ddn_lightning.distill.replay_loss import ReplayLoss
from ddn_lightning.errors import note
from ddn_lightning.random_streams import OLD_MEMORY
from ddn_lightning.samples import Samples, cross_entropy


class Term:
    """A term of the loss, with hooks around the step. A method calls the hooks of its ``terms`` in their order.

    A term changes the loss (:meth:`add_to`), the logits that the loss is computed from (:meth:`adapted`), or something
    of its own before or after the step (:meth:`before_step`, :meth:`update`). By default no hook does anything.
    """

    def begin_fit(self, method: Learner) -> None:
        """Hook at the start of training, with an empty memory."""

    def check(self, method: Learner) -> None:
        """Refuse an incompatible method, right before training; the optimizers exist already."""

    def begin_task(self, is_old_class: Tensor) -> None:
        """Hook at the beginning of a task, with the classes of earlier tasks."""

    def before_step(self, method: Learner, current: Samples) -> None:
        """Hook before the classifier steps on the incoming batch, which is augmented."""

    def adapted(self, logits: Tensor, method: Learner) -> Tensor:
        """The logits from which the method computes its loss: by default the network's."""
        return logits

    def add_to(self, loss: ReplayLoss, method: Learner, current: Samples) -> ReplayLoss:
        """The loss with this term, where it applies.

        Args:
            loss: The loss so far; it has ``rehearsed`` samples if the step replays memory.
            method: The method.
            current: Its incoming batch, augmented.
        """
        return loss

    def update(self, method: Learner, current: Samples) -> None:
        """Hook after the classifier's step, where a term learns.

        Args:
            method: The method.
            current: Its incoming batch, augmented.
        """

    def reset_slots(self, slots: Tensor) -> None:
        """Hook after these slots of the memory have received new samples."""

    def snapshot(self) -> None:
        """Hook at the end of a task, after the ``on_task_end`` of all callbacks."""

    def grow(self, num_classes: int) -> None:
        """Change the number of classes."""

    def training_state(self) -> dict[str, Any]:
        """What a resumed run continues with, besides the weights of an ``nn.Module``. Every rank calls this."""
        return {}

    def load_training_state(self, state: dict[str, Any], device: torch.device) -> None:
        """Restore the :meth:`training_state`."""

    def parameters(self) -> Iterable[nn.Parameter]:
        """The parameters that the term learns by itself: the classifier's optimizer leaves them out."""
        return ()

    def configure_optimizer(self) -> Optimizer | None:
        """The optimizer of these parameters, if there are any."""
        return None


@dataclass(frozen=True)
class TermState:
    """The training state of a term, as a part of a checkpoint.

    Args:
        term: The term.
        device: Where it is used.
    """

    term: Term
    device: torch.device

    def state_dict(self) -> dict[str, Any]:
        """The state."""
        return self.term.training_state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it."""
        self.term.load_training_state(state, self.device)


class HardLabelControl(Term):
    """Cross-entropy with hard labels on an additional draw from old memory: the control of a distiller's rehearsal.

    Args:
        weight: Weight of the term.
    """

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def check(self, method: Learner) -> None:
        """Note that there is a distiller too."""
        for name in (type(term).__name__ for term in method.terms if term is not self):
            note(f"old_memory_weight = {self.weight} beside {name}: both draw old memory, the one with hard labels")

    def add_to(self, loss: ReplayLoss, method: Learner, current: Samples) -> ReplayLoss:
        """The loss with the term, in steps that replay memory."""
        if loss.rehearsed is None:
            return loss
        old = method.draw_memory(method.old_tasks, method.streams[OLD_MEMORY])
        if old is None:
            return loss
        return loss.with_term(lambda: self.weight * cross_entropy(method.logits_of(old, is_extra=True), old))
