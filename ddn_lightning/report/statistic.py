"""Mean and standard deviation over seeds."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Statistic:
    """A value that was measured several times.

    Args:
        mean: The mean.
        std: The sample standard deviation, with n - 1; ``None`` if it was measured once.
        n: How often it was measured.
    """

    mean: float
    std: float | None
    n: int

    def __str__(self) -> str:
        deviation = "" if self.std is None else f" ± {self.std:.2f}"
        return f"{self.mean:.2f}{deviation} ({self.n})"


def statistic(values: Iterable[float | None]) -> Statistic | None:
    """Mean and standard deviation of what was measured, or ``None`` if nothing was.

    >>> print(statistic([1.0, 2.0, 6.0, None]))
    3.00 ± 2.65 (3)
    """
    measured = [value for value in values if value is not None]
    if not measured:
        return None
    deviation = statistics.stdev(measured) if len(measured) > 1 else None
    return Statistic(statistics.fmean(measured), deviation, len(measured))
