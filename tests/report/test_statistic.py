import math
import random
import statistics

import pytest

from ddn_lightning.report.statistic import (
    Estimate,
    estimate,
    paired_difference,
    paired_ratio,
    rank_correlation,
    student_quantile,
)


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (10, 2.228), (19, 2.093), (30, 2.042), (120, 1.980)],
)
def test_quantiles_match_printed_tables(degrees: int, expected: float) -> None:
    assert student_quantile(degrees) == pytest.approx(expected, abs=5e-4)


def test_quantiles_approach_those_of_the_normal_distribution() -> None:
    assert student_quantile(5000) == pytest.approx(statistics.NormalDist().inv_cdf(0.975), abs=1e-3)


def test_only_common_seeds_are_compared() -> None:
    values = {1: 10.0, 2: 20.0, 3: 33.0, 4: None, 5: 50.0}
    others = {2: 19.0, 3: 30.0, 4: 1.0, 5: None, 1: 8.0, 9: 1.0}
    found = paired_difference(values, others)
    assert found is not None
    assert (found.n, found.mean, found.std) == (3, 2.0, 1.0)
    assert found.error == pytest.approx(1 / math.sqrt(3))
    assert (found.low, found.high) == (pytest.approx(2 - 4.303 / 3**0.5, abs=1e-3), pytest.approx(4.4843, abs=1e-3))
    assert paired_difference({1: 1.0}, {2: 1.0}) is None


def test_a_ratio_is_taken_seed_by_seed() -> None:
    found = paired_ratio({1: 2.0, 2: 9.0, 3: 1.0}, {1: 1.0, 2: 3.0, 3: 0.0})
    assert found is not None
    assert (found.n, found.mean) == (2, 2.5)


def test_a_single_seed_has_a_value_but_no_interval_and_no_verdict() -> None:
    assert estimate([40.0]) == Estimate(1, 40.0)
    assert Estimate(1, 40.0).verdict == "not shown"
    two = estimate([5.0, 5.0001])
    assert two is not None
    assert two.low is not None
    assert two.low > 0
    assert two.verdict == "not shown"  # two seeds often agree by chance


def excluded(effect: float, repetitions: int = 1000, seeds: int = 5) -> float:
    """Share of experiments with the verdict ``difference``; seeds vary far more than methods."""
    chance = random.Random(0)
    count = 0
    for _ in range(repetitions):
        of_seed = [chance.gauss(40, 5) for _ in range(seeds)]
        plain = {seed: value + chance.gauss(0, 1) for seed, value in enumerate(of_seed)}
        changed = {seed: value + effect + chance.gauss(0, 1) for seed, value in enumerate(of_seed)}
        found = paired_difference(changed, plain)
        assert found is not None
        count += found.verdict == "difference"
    return count / repetitions


def test_without_an_effect_five_percent_of_intervals_exclude_zero() -> None:
    assert 0.03 < excluded(effect=0.0) < 0.07


def test_a_real_effect_is_found() -> None:
    assert excluded(effect=5.0) > 0.97
    assert excluded(effect=-5.0) > 0.97


def test_rank_correlation_is_that_of_hand_made_ranks() -> None:
    # ranks 1 2 3 4 5 and 2 1 4 3 5: 1 - 6 * (1 + 1 + 1 + 1 + 0) / (5 * 24)
    assert rank_correlation([1.0, 2.0, 9.0, 10.0, 99.0], [20.0, 10.0, 40.0, 30.0, 50.0]) == pytest.approx(0.8)
    assert rank_correlation([1.0, 2.0, 3.0], [9.0, 5.0, 1.0]) == pytest.approx(-1)


def test_tied_values_share_the_mean_of_their_ranks() -> None:
    # ranks 1.5 1.5 3 4 and 1 2 3.5 3.5
    shared = statistics.correlation([1.5, 1.5, 3.0, 4.0], [1.0, 2.0, 3.5, 3.5])
    assert rank_correlation([5.0, 5.0, 6.0, 7.0], [1.0, 3.0, 8.0, 8.0]) == pytest.approx(shared)


@pytest.mark.parametrize(("values", "others"), [([], []), ([1.0], [2.0]), ([1.0, 1.0], [2.0, 3.0])])
def test_rank_correlation_is_left_out_where_it_is_not_defined(values: list[float], others: list[float]) -> None:
    assert rank_correlation(values, others) is None
