"""A moving average of a network's weights, which predicts in its place."""

import copy

import torch
from torch import Tensor, nn

from ddn_lightning.errors import check_fraction


class WeightAverage(nn.Module):
    """The exponential moving average of a network: of its weights, and of its BatchNorm statistics.

    After step n each number moves by ``1 - min(decay, 1 - 1 / (n + 1))`` towards the network's, so that the average
    leaves the initial weights soon. Counters are copied.

    Args:
        network: The network, which the average starts as.
        decay: Weight of the past.

    Example:
        >>> network = nn.Linear(1, 1)
        >>> average = WeightAverage(network, decay=0.9)
        >>> with torch.no_grad():
        ...     before = network.weight.clone()
        ...     _ = network.weight.add_(1)
        >>> average.update(network, step=99)
        >>> round(float(average.network.get_parameter("weight") - before), 4)
        0.1
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        super().__init__()
        check_fraction(evaluate_average=decay)
        self.network = copy.deepcopy(network).requires_grad_(False)
        self.decay = decay

    def forward(self, images: Tensor) -> Tensor:
        """Logits of the average."""
        logits: Tensor = self.network(images)
        return logits

    def restart(self, network: nn.Module) -> None:
        """Start again as the network."""
        self.network.load_state_dict(network.state_dict())

    @torch.no_grad()
    def update(self, network: nn.Module, step: int) -> None:
        """Move towards the network, after a step; the first one is 1."""
        own = [*self.network.parameters(), *self.network.buffers()]
        new = [*network.parameters(), *network.buffers()]
        pairs = list(zip(own, new, strict=True))
        averaged = [pair for pair in pairs if pair[0].is_floating_point()]
        decay = min(self.decay, 1 - 1 / (step + 1))
        torch._foreach_lerp_([mine for mine, _ in averaged], [theirs for _, theirs in averaged], 1 - decay)
        for mine, theirs in pairs:
            if not mine.is_floating_point():
                mine.copy_(theirs)
