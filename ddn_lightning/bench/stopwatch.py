"""Times in rounds, one action after another, so that whatever slows the machine down meets all alike."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import torch

Clock = Callable[[], float]


@dataclass(frozen=True)
class Timing:
    """How long an action took, round by round.

    Args:
        seconds: One time per round.
    """

    seconds: tuple[float, ...]

    @property
    def best(self) -> float:
        """The shortest: what the action takes where nothing else runs."""
        return min(self.seconds)

    @property
    def median(self) -> float:
        """The usual time."""
        return median(self.seconds)

    def over(self, other: "Timing") -> float:
        """How many times as long as another action of the same rounds this one takes, by the shortest times.

        >>> Timing((3.0, 2.0)).over(Timing((0.5, 4.0)))
        4.0
        """
        return self.best / other.best


def clock_of(device: torch.device) -> Clock:
    """On a CPU the time of this process, whatever others do; elsewhere that of the clock, once the device is done."""
    if device.type == "cpu":
        return time.process_time

    def clock() -> float:
        torch.accelerator.synchronize(device)
        return time.perf_counter()

    return clock


def interleaved(
    actions: Mapping[str, Callable[[], object]], rounds: int, clock: Clock, done: Callable[[], None] = lambda: None
) -> dict[str, Timing]:
    """Time actions in rounds of one each, after a round that does not count.

    Args:
        actions: What to time.
        rounds: How often.
        clock: Tells the time in seconds.
        done: Called after each action, for a progress bar.
    """
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds + 1):
        for name, action in actions.items():
            start = clock()
            action()
            seconds[name].append(clock() - start)
            done()
    return {name: Timing(tuple(times[1:])) for name, times in seconds.items()}
