"""Mean, standard deviation and confidence interval over seeds; paired differences and ratios; seeds that one needs."""

import functools
import math
import statistics
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from scipy import stats

CONFIDENCE = 0.95
FEWEST_SEEDS = 3  # with fewer, no interval counts as a difference
Verdict = Literal["difference", "not shown"]


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its 95 % confidence interval; a single seed has a mean only.

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

    def __str__(self) -> str:
        return f"{self.mean_std} ({self.n})"

    @property
    def mean_std(self) -> str:
        """``mean ± std`` with two decimals."""
        return f"{self.mean:.2f}" if self.std is None else f"{self.mean:.2f} ± {self.std:.2f}"

    @property
    def verdict(self) -> Verdict:
        """``difference`` if there are at least three seeds and the interval excludes 0."""
        if self.n < FEWEST_SEEDS or self.low is None or self.high is None:
            return "not shown"
        return "not shown" if self.low <= 0 <= self.high else "difference"


def estimate(values: Iterable[float | None]) -> Estimate | None:
    """Mean, standard deviation and interval of independent values without the ``None`` among them.

    >>> print(estimate([1.0, 2.0, 6.0, None]))
    3.00 ± 2.65 (3)
    >>> found = estimate([1.0, 2.0, 3.0])
    >>> found.mean, found.std, round(found.low, 3), round(found.high, 3)
    (2.0, 1.0, -0.484, 4.484)
    """
    measured = [value for value in values if value is not None]
    if len(measured) < 2:
        return Estimate(1, measured[0]) if measured else None
    mean, std = statistics.fmean(measured), statistics.stdev(measured)
    error = std / math.sqrt(len(measured))
    margin = student_quantile(len(measured) - 1) * error
    return Estimate(len(measured), mean, std, error, mean - margin, mean + margin)


def paired_difference(values: Mapping[int, float | None], others: Mapping[int, float | None]) -> Estimate | None:
    """``values - others`` seed by seed, or ``None`` without a common seed.

    Args:
        values: Values by seed, ``None`` where not measured.
        others: Values to subtract, by seed.
    """
    return estimate([value - other for value, other in _pairs(values, others)])


def paired_ratio(values: Mapping[int, float | None], others: Mapping[int, float | None]) -> Estimate | None:
    """``values / others`` seed by seed, for positive ``others``; ``None`` without a common seed."""
    return estimate([value / other for value, other in _pairs(values, others) if other > 0])


def _pairs(values: Mapping[int, float | None], others: Mapping[int, float | None]) -> list[tuple[float, float]]:
    both = [(value, others.get(seed)) for seed, value in values.items()]
    return [(value, other) for value, other in both if value is not None and other is not None]


def rank_correlation(values: Sequence[float], others: Sequence[float]) -> float | None:
    """Spearman's rank correlation; ``None`` where it is not defined: below two pairs, or if all of one side are equal.

    >>> rank_correlation([1.0, 2.0, 30.0], [0.1, 0.2, 0.3]), rank_correlation([1.0, 2.0], [4.0, 4.0])
    (1.0, None)
    """
    if min(len(set(values)), len(set(others))) < 2:
        return None
    return float(stats.spearmanr(values, others).statistic)


@functools.cache
def student_quantile(degrees: int) -> float:
    """The two-sided quantile t of Student's distribution: P(abs(T) <= t) = 0.95.

    >>> round(student_quantile(2), 3), round(student_quantile(10), 3)
    (4.303, 2.228)
    """
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, degrees))


POWER = 0.8  # probability of finding a difference that is there
MOST_SEEDS = 1000  # beyond it, the number says no more than "too many"


@dataclass(frozen=True)
class SeedsNeeded:
    """Seeds with which the paired t-test finds a difference with probability 0.8; ``None`` beyond ``MOST_SEEDS``.

    Args:
        observed: If the true difference is the observed one.
        target: If it is the size that was asked for.
    """

    observed: int | None
    target: int | None

    def __str__(self) -> str:
        return " / ".join(f"> {MOST_SEEDS}" if one is None else str(one) for one in (self.observed, self.target))


def seeds_needed(found: Estimate, target: float) -> SeedsNeeded | None:
    """The seeds that a paired difference needs, or ``None`` for a single seed, which does not vary.

    Args:
        found: The difference.
        target: A difference worth finding, in the same unit.
    """
    if found.std is None:
        return None
    return SeedsNeeded(_fewest(abs(found.mean), found.std), _fewest(target, found.std))


def power(seeds: int, effect: float) -> float:
    """Probability that the two-sided paired t-test at level 0.05 finds an effect.

    The statistic is noncentral t with ``seeds`` - 1 degrees of freedom and noncentrality ``effect`` * sqrt(``seeds``).

    Args:
        seeds: Number of pairs, at least 2.
        effect: Mean of the differences divided by their standard deviation.

    >>> round(power(34, 0.5), 3), round(power(10, 1.0), 3)
    (0.808, 0.803)
    """
    degrees, shift = seeds - 1, effect * math.sqrt(seeds)
    quantile = student_quantile(degrees)
    below = float(stats.nct.cdf(-quantile, degrees, shift))
    return float(stats.nct.sf(quantile, degrees, shift)) + (0 if math.isnan(below) else below)  # nan is an underflow


def _fewest(difference: float, std: float) -> int | None:
    if std == 0:
        return FEWEST_SEEDS if difference else None
    candidates = range(FEWEST_SEEDS, MOST_SEEDS + 1)
    place = bisect_left(candidates, POWER, key=lambda seeds: power(seeds, difference / std))
    return candidates[place] if place < len(candidates) else None
