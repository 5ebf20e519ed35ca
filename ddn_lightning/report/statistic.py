"""Mean and deviation over seeds, and differences paired by seed with their confidence intervals."""

import functools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

CONFIDENCE = 0.95
FEWEST_SEEDS = 3  # below, nothing is called a difference, whatever the interval
Verdict = Literal["difference", "not shown"]


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


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its 95 % confidence interval; ``None`` where a single seed tells nothing.

    Args:
        n: Number of seeds.
        mean: The mean.
        std: The sample standard deviation, with n - 1.
        error: The standard error of the mean.
        low: Lower end of the interval.
        high: Upper end of the interval.
    """

    n: int
    mean: float
    std: float | None = None
    error: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def verdict(self) -> Verdict:
        """``difference`` if the interval excludes 0 and at least three seeds say so; else it is ``not shown``."""
        if self.n < FEWEST_SEEDS or self.low is None or self.high is None:
            return "not shown"
        return "not shown" if self.low <= 0 <= self.high else "difference"


def estimate(values: Sequence[float]) -> Estimate | None:
    """Mean, deviation and interval of values that are independent of each other, or ``None`` if there are none.

    >>> found = estimate([1.0, 2.0, 3.0])
    >>> found.mean, found.std, round(found.low, 3), round(found.high, 3)
    (2.0, 1.0, -0.484, 4.484)
    """
    found = statistic(values)
    if found is None or found.std is None:
        return None if found is None else Estimate(1, found.mean)
    error = found.std / math.sqrt(found.n)
    reach = student_quantile(found.n - 1) * error
    return Estimate(found.n, found.mean, found.std, error, found.mean - reach, found.mean + reach)


def paired_difference(values: Mapping[int, float | None], others: Mapping[int, float | None]) -> Estimate | None:
    """By how much values are above others on the same seeds, or ``None`` if they have no seed in common.

    Args:
        values: Values by seed, ``None`` where nothing was measured.
        others: What to subtract, by seed.
    """
    return estimate([value - other for value, other in _pairs(values, others)])


def paired_ratio(values: Mapping[int, float | None], others: Mapping[int, float | None]) -> Estimate | None:
    """How many times as large values are as others on the same seeds; others must be above 0 to count."""
    return estimate([value / other for value, other in _pairs(values, others) if other > 0])


def _pairs(values: Mapping[int, float | None], others: Mapping[int, float | None]) -> list[tuple[float, float]]:
    both = [(value, others.get(seed)) for seed, value in values.items()]
    return [(value, other) for value, other in both if value is not None and other is not None]


@functools.cache
def student_quantile(degrees: int, confidence: float = CONFIDENCE) -> float:
    """The t that a variable with Student's distribution stays within, on both sides, with this probability.

    >>> round(student_quantile(2), 3), round(student_quantile(10), 3)
    (4.303, 2.228)
    """
    if degrees < 1:
        raise ValueError(f"degrees must be at least 1, got {degrees}")
    low, high = 0.0, math.pi / 2  # of the angle, which is bounded where t is not
    for _ in range(60):  # halves the interval to below double precision
        middle = (low + high) / 2
        low, high = (middle, high) if _probability_within(middle, degrees) < confidence else (low, middle)
    return math.sqrt(degrees) * math.tan(low)


def _probability_within(angle: float, degrees: int) -> float:
    """P(abs(T) <= t) with tan(angle) = t / sqrt(degrees) (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4)."""
    sine, cosine = math.sin(angle), math.cos(angle)
    is_odd = degrees % 2 == 1
    term, total = (cosine, 0.0) if is_odd else (1.0, 0.0)
    for power in range(1 if is_odd else 0, degrees - 1, 2):
        total += term
        term *= cosine * cosine * (power + 1) / (power + 2)
    return 2 / math.pi * (angle + sine * total) if is_odd else sine * total
