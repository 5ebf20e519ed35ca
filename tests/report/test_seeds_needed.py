"""Power of the paired t-test, against tables and recorded values."""

import pytest

from ddn_lightning.report.statistic import MOST_SEEDS, POWER, Estimate, SeedsNeeded, estimate, power, seeds_needed


@pytest.mark.parametrize(
    ("effect", "seeds"), [(0.2, 199), (0.3, 90), (0.5, 34), (0.8, 15), (1.0, 10), (1.5, 6), (2, 5)]
)
def test_the_seeds_needed_match_published_tables(effect: float, seeds: int) -> None:
    assert seeds_needed(Estimate(5, 3 * effect, std=3.0), target=3.0) == SeedsNeeded(seeds, 10)
    assert seeds_needed(Estimate(5, -3 * effect, std=3.0), target=1.5) == SeedsNeeded(seeds, 34)


@pytest.mark.parametrize(
    ("seeds", "effect", "expected"),
    [
        (2, 0.1, 0.0505),
        (3, 0.0, 0.05),
        (3, 2.0, 0.4707),
        (5, 0.7, 0.2278),
        (10, 1.0, 0.8031),
        (300, 0.1, 0.4078),
        (10, 9.0, 1.0),
        (300, 0.7, 1.0),
    ],
)
def test_power_is_that_of_an_integral_over_the_standard_deviation(seeds: int, effect: float, expected: float) -> None:
    assert power(seeds, effect) == pytest.approx(expected, abs=5e-5)  # recorded from Simpson's rule


def test_one_seed_less_than_needed_has_too_little_power() -> None:
    for effect in (0.15, 0.4, 0.9, 1.4):
        needed = seeds_needed(Estimate(3, effect, std=1.0), target=1.0)
        assert needed is not None
        assert needed.observed is not None
        assert power(needed.observed - 1, effect) < POWER <= power(needed.observed, effect)


def test_no_number_of_seeds_is_named_beyond_the_limit_and_none_below_three() -> None:
    assert seeds_needed(Estimate(5, 0.0, std=1.0), target=100.0) == SeedsNeeded(None, 3)
    assert seeds_needed(Estimate(5, 0.01, std=1.0), target=0.089) == SeedsNeeded(None, 993)
    assert str(SeedsNeeded(None, 3)) == f"> {MOST_SEEDS} / 3"
    assert seeds_needed(Estimate(3, 2.0, std=0.0), target=1.0) == SeedsNeeded(3, 3)
    assert seeds_needed(Estimate(3, 0.0, std=0.0), target=1.0) == SeedsNeeded(None, 3)


def test_a_single_seed_does_not_tell_how_many_are_needed() -> None:
    single = estimate([40.0])
    assert single is not None
    assert seeds_needed(single, target=1.0) is None
