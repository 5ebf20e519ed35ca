"""Which of several differences are shown, corrected for their number by Holm's method."""

from collections.abc import Sequence

from scipy import stats

from ddn_lightning.report.statistic import CONFIDENCE, FEWEST_SEEDS, Estimate
from study.measured import interval


def p_value(difference: Estimate | None) -> float | None:
    """The two-sided p-value of Student's test that a paired difference is 0.

    ``None`` for fewer than three seeds, and for a difference of 0 on all seeds: it is so by construction.
    """
    if difference is None or difference.n < FEWEST_SEEDS or difference.error is None:
        return None
    if not difference.error:
        return None if difference.mean == 0 else 0.0
    return float(2 * stats.t.sf(abs(difference.mean / difference.error), difference.n - 1))


def adjusted(p_values: Sequence[float]) -> list[float]:
    """p-values corrected by Holm's method: below 0.05, a difference is shown among all of them.

    >>> [round(p, 3) for p in adjusted([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    corrected = [0.0] * len(p_values)
    highest = 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = highest
    return corrected


def shown(differences: Sequence[Estimate | None]) -> list[bool]:
    """Whether each difference of a family is shown after the correction."""
    values = [p_value(difference) for difference in differences]
    corrected = iter(adjusted([value for value in values if value is not None]))
    return [value is not None and next(corrected) < 1 - CONFIDENCE for value in values]


def marked(differences: Sequence[Estimate | None]) -> list[str]:
    """The differences of a family with their 95 % intervals, in bold where they are shown after the correction."""
    texts = [interval(difference) for difference in differences]
    return [f"**{text}**" if is_shown else text for text, is_shown in zip(texts, shown(differences), strict=True)]


def family_size(differences: Sequence[Estimate | None]) -> int:
    """How many differences the correction counts."""
    return sum(p_value(difference) is not None for difference in differences)
