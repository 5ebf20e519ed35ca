"""Learned labels: a row of logits for each slot of the memory, without a network."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from ddn_lightning.checkpoint.growth import with_low_logits
from ddn_lightning.distill.bilevel_distiller import BilevelDistiller
from ddn_lightning.distill.label_distiller import one_hot
from ddn_lightning.distributed import moved
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.learner import Facts, Learner
from ddn_lightning.samples import Samples


class LearnedLabels(BilevelDistiller):
    """L2Y, the ablation of DDN in Table 3: the soft label of each slot is a parameter.

    Half of a label is the hard one, half the softmax of the slot's row. Rows start at zero and are reset when their
    slot receives a new sample.

    Args:
        **kwargs: Arguments of :class:`BilevelDistiller`.
    """

    facts = Facts("l2y", "L2Y")

    rows: nn.Parameter
    optimizer: "RowAdam"

    def build(self, num_classes: int, buffer_size: int) -> None:
        """Create the rows."""
        super().build(num_classes, buffer_size)
        self.rows = nn.Parameter(torch.zeros(buffer_size, num_classes))

    def resize(self, buffer_size: int) -> None:
        """Change the number of rows."""
        self.rows.data = self.rows.new_zeros(buffer_size, self.rows.shape[1])

    def grow(self, num_classes: int) -> None:
        """Change the number of classes; new ones get no share of the labels of stored samples yet."""
        super().grow(num_classes)
        self.rows.data = with_low_logits(self.rows.detach(), num_classes)

    def check(self, method: Learner) -> None:
        """Refuse a memory whose images are learned and move from slot to slot, and the delayed update."""
        if method.memory.learning_rates:
            kind = type(method.memory).__name__
            raise ConfigurationError(f"LearnedLabels, which learns a label for each stored image, cannot take a {kind}")
        if self.lookahead == "delayed":
            raise ConfigurationError(
                "lookahead must be exact with LearnedLabels, whose slots may have new samples a step later, got delayed"
            )
        super().check(method)

    def soft_labels(self, samples: Samples, probabilities: Tensor) -> Tensor:
        """The labels of the samples' slots."""
        assert samples.slots is not None
        learned = self.rows[moved(samples.slots, self.rows.device)].softmax(dim=1)
        return (learned + one_hot(samples, probabilities)) / 2

    def configure_optimizer(self) -> torch.optim.Optimizer:
        """Adam that treats each row as a separate parameter."""
        self.optimizer = RowAdam([self.rows], self.lr)
        return self.optimizer

    def reset_slots(self, slots: Tensor) -> None:
        """Reset the rows of these slots."""
        with torch.no_grad():
            self.rows[moved(slots, self.rows.device)] = 0
        self.optimizer.reset_rows(slots)


class RowAdam(torch.optim.Optimizer):
    """Adam (https://arxiv.org/abs/1412.6980) that steps only the rows with a gradient.

    Plain Adam would also move rows that are not in the batch, by their momentum.

    Args:
        params: Matrices.
        lr: Learning rate.
        betas: Decay of both moments.
        eps: Added to the denominator.
    """

    def __init__(
        self, params: Iterable[Tensor], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})
        for group in self.param_groups:
            for rows in group["params"]:
                steps = rows.new_zeros(len(rows), 1)
                moments = {"mean": torch.zeros_like(rows), "square": torch.zeros_like(rows)}
                self.state[rows] = {"steps": steps, **moments}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # no closure gives a loss here
        """Step the rows with a gradient."""
        for group in self.param_groups:
            first, second = group["betas"]
            for rows in group["params"]:
                state, gradient = self.state[rows], rows.grad
                is_moved = (gradient != 0).any(dim=1, keepdim=True)
                state["steps"] += is_moved
                state["mean"].copy_(torch.where(is_moved, state["mean"].lerp(gradient, 1 - first), state["mean"]))
                squares = state["square"].lerp(gradient.square(), 1 - second)
                state["square"].copy_(torch.where(is_moved, squares, state["square"]))
                steps = state["steps"].clamp_min(1)
                mean = state["mean"] / (1 - first**steps)
                root = (state["square"] / (1 - second**steps)).sqrt() + group["eps"]
                rows.sub_(torch.where(is_moved, group["lr"] * mean / root, 0))

    def reset_rows(self, rows: Tensor) -> None:
        """Reset the moments of these rows."""
        for state in self.state.values():
            for moment in state.values():
                moment[moved(rows, moment.device)] = 0
