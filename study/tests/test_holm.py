"""Holm's correction, against closed testing and scipy."""

from itertools import combinations

import pytest
import torch
from scipy import stats

from ddn_lightning.report.statistic import estimate
from study.holm import adjusted, family_size, marked, p_value, shown


def by_closed_testing(p_values: list[float]) -> list[float]:
    """The largest Bonferroni p-value of all intersections that contain a hypothesis: Holm's, by definition."""
    places = range(len(p_values))
    subsets = [s for size in range(1, len(p_values) + 1) for s in combinations(places, size)]
    return [max(min(1.0, len(s) * min(p_values[i] for i in s)) for s in subsets if place in s) for place in places]


def test_the_correction_is_closed_testing_with_bonferroni() -> None:
    for seed in range(20):
        values = (torch.rand(6, generator=torch.Generator().manual_seed(seed)) ** 4).tolist()
        assert adjusted(values) == pytest.approx(by_closed_testing(values))


def test_the_p_value_is_that_of_scipy() -> None:
    values = [0.3, 1.2, 0.8, -0.1]
    assert p_value(estimate(values)) == pytest.approx(stats.ttest_1samp(values, 0).pvalue)


def test_what_is_equal_by_construction_or_has_two_seeds_is_not_counted() -> None:
    differences = [estimate([0.0, 0.0, 0.0]), estimate([5.0, 5.1]), None, estimate([1.0, 1.1, 0.9, 1.0])]
    assert family_size(differences) == 1
    assert shown(differences) == [False, False, False, True]
    texts = marked(differences)
    assert texts[0] == "+0.00 [+0.00, +0.00] (3)"
    assert texts[3].startswith("**+1.00 [")


def test_an_interval_without_0_may_not_be_shown_among_many() -> None:
    alone = estimate([1.0, 2.0, 3.0, 1.5])
    assert alone.verdict == "difference"
    assert shown([alone]) == [True]
    assert shown([alone] * 10) == [False] * 10
