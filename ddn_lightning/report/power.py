"""How many seeds a difference needs to be found."""

import math
from bisect import bisect_left
from dataclasses import dataclass

from scipy import stats

from ddn_lightning.report.statistic import FEWEST_SEEDS, Estimate, student_quantile

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
