"""What the delayed update keeps of a step until the next one."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, distributed

from ddn_lightning.distill.hypergradient import ForwardPass
from ddn_lightning.distributed import gather_shares, local_share, rank_and_world_size
from ddn_lightning.samples import Samples

COLUMNS = ("images", "labels", "tasks", "slots", "logits")  # of the draw and of its forward pass


@dataclass(frozen=True)
class PastStep:
    """A step of the classifier whose soft labels are judged by the loss of the next step.

    Args:
        inner: Its draw with soft labels, this rank's share.
        forward: The forward pass of the draw, before the step.
        parameters: The parameters before the step.
        rates: The learning rate of each parameter group.
    """

    inner: Samples
    forward: ForwardPass
    parameters: dict[str, Tensor]
    rates: list[float]

    def state(self) -> dict[str, Any]:
        """For a checkpoint: the draw of all ranks. Every rank must call this."""
        columns = {name: getattr(self.inner, name) for name in COLUMNS[:-1]} | {"logits": self.forward.logits}
        states: list[Any] = [self.forward.random_state]
        _, world_size = rank_and_world_size()
        if world_size > 1:
            states = [None] * world_size
            distributed.all_gather_object(states, self.forward.random_state)
        total, device = self.inner.total, self.inner.labels.device
        return {
            "columns": {n: None if c is None else gather_shares(c.to(device), total).cpu() for n, c in columns.items()},
            "size": total,
            "parameters": {name: parameter.cpu() for name, parameter in self.parameters.items()},
            "rates": self.rates,
            "random_states": states,
        }

    @classmethod
    def of(cls, state: dict[str, Any], device: torch.device) -> "PastStep":
        """This rank's part of a saved step."""
        columns: dict[str, Any] = {
            n: None if column is None else local_share(column) for n, column in state["columns"].items()
        }
        logits = columns.pop("logits").to(device)
        rank, _ = rank_and_world_size()
        states = state["random_states"]
        return cls(
            replace(Samples(**columns), global_size=state["size"]).to(device),
            ForwardPass(logits, states[rank % len(states)].cpu()),
            {name: parameter.to(device) for name, parameter in state["parameters"].items()},
            state["rates"],
        )
