"""How many seeds a difference needs to be found."""

import math
from dataclasses import dataclass
from statistics import NormalDist

from ddn_lightning.report.statistic import FEWEST_SEEDS, Estimate, student_quantile

POWER = 0.8  # probability of finding a difference that is there
MOST_SEEDS = 1000  # beyond it, the number says no more than "too many"
INTERVALS = 200  # of Simpson's rule: power is exact to 1e-5


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

    With V chi-squared of f = ``seeds`` - 1 degrees of freedom and S = sqrt(V / f), the statistic is noncentral t: it
    stays within the quantile t with probability E[Phi(t S - d) - Phi(-t S - d)] for d = ``effect`` * sqrt(``seeds``)
    (Johnson, Kotz and Balakrishnan 1995, chapter 31). The expectation is integrated by Simpson's rule.

    Args:
        seeds: Number of pairs, at least 2.
        effect: Mean of the differences divided by their standard deviation.

    >>> round(power(34, 0.5), 3), round(power(10, 1.0), 3)
    (0.808, 0.803)
    """
    degrees = seeds - 1
    quantile, shift = student_quantile(degrees), effect * math.sqrt(seeds)
    reach = 8 / math.sqrt(2 * degrees)  # standard deviations of S, which is about normal around 1
    low = max(0.0, 1 - reach)
    step = (1 + reach - low) / INTERVALS
    normal = NormalDist()
    within = 0.0
    for index in range(1, INTERVALS + 1):  # the density of S is next to 0 at the lower end
        spread = low + index * step
        weight = 1 if index == INTERVALS else 4 if index % 2 else 2
        stays = normal.cdf(quantile * spread - shift) - normal.cdf(-quantile * spread - shift)
        within += weight * stays * _density(spread, degrees)
    return 1 - within * step / 3


def _density(spread: float, degrees: int) -> float:
    """Density of the square root of a chi-squared variable divided by its degrees of freedom."""
    half = degrees / 2
    logarithm = half * math.log(half) - math.lgamma(half) + (degrees - 1) * math.log(spread) - half * spread**2
    return 2 * math.exp(logarithm)


def _fewest(difference: float, std: float) -> int | None:
    if std == 0:
        return FEWEST_SEEDS if difference else None
    effect = difference / std
    reached = NormalDist().inv_cdf(0.975) + NormalDist().inv_cdf(POWER)
    if reached**2 > MOST_SEEDS * effect**2:  # the t-test needs more than a test with known deviation
        return None
    seeds = max(FEWEST_SEEDS, math.floor((reached / effect) ** 2))  # from below
    while power(seeds, effect) < POWER:
        seeds += 1
    return seeds if seeds <= MOST_SEEDS else None
