"""The gain of DDN over ER, taken apart on the same seeds."""

from pathlib import Path

import pytest

from study.gain import ARMS, gain_arms, gain_table
from study.gain_figure import gain_figure
from study.measured import (
    Group,
    MeasuredRun,
)

ROOT = Path(__file__).parents[2]
BED = ("cifar10@16", "ResNet18 width 16", "online", 200)
ACC = [30.0, 34.0, 34.5, 35.0]  # of the four arms
CALIBRATED_FM = [25.0, 25.0, 21.0, 20.0]


def study(seeds: tuple[int, ...] = (20, 21, 22), missing: tuple[tuple[int, int], ...] = ()) -> list[MeasuredRun]:
    """Runs whose seeds differ by three points, and whose steps differ by a tenth of a point between seeds."""
    return [
        MeasuredRun(
            Group(*BED, "er", plugin, options),
            seed,
            ACC[arm] + 3 * seed + 0.1 * arm * (seed - 21),
            50.0,
            (),
            36.0,
            CALIBRATED_FM[arm] + seed,
            2.0,
            "ddn fit",
        )
        for arm, (_, plugin, options) in enumerate(ARMS)
        for seed in seeds
        if (arm, seed) not in missing
    ]


def test_each_step_is_compared_with_the_one_before_it_seed_by_seed() -> None:
    arms = gain_arms(study(), BED)
    running, calibrated = arms[:4], arms[4:]
    assert [arm.statistics for arm in arms] == ["running"] * 4 + ["calibrated"] * 4
    assert [arm.acc_gain and round(arm.acc_gain.mean, 6) for arm in running] == [None, 4.0, 0.5, 0.5]
    assert [arm.fm_gain and round(arm.fm_gain.mean, 6) for arm in calibrated] == [None, 0.0, -4.0, -1.0]
    # steps of -0.1, 0 and 0.1 around the mean: the seeds' own differences, of three points, cancel
    assert running[1].acc_gain.std == pytest.approx(0.1)
    assert running[1].acc.std == pytest.approx(3.1)


def test_only_seeds_that_all_arms_have_count_and_none_that_served_for_choosing() -> None:
    arms = gain_arms(study((3, 20, 21, 22), missing=((2, 21),)), BED)
    assert {arm.seeds for arm in arms} == {(20, 22)}
    assert gain_arms(study((3,)), BED) == []


def test_an_arm_that_was_not_run_is_left_out_of_the_chain() -> None:
    arms = gain_arms(study(missing=tuple((1, seed) for seed in (20, 21, 22))), BED)
    assert [arm.adds for arm in arms[:3]] == [ARMS[0][0], ARMS[2][0], ARMS[3][0]]
    assert round(arms[1].acc_gain.mean, 6) == 4.5


def test_the_table_has_a_row_for_each_step() -> None:
    lines = gain_table(gain_arms(study(), BED)).splitlines()
    assert lines[2] == "| ER | 93.00 | 50.00 | 36.00 | 46.00 |"
    nothing = "+0.00 [+0.00, +0.00] (3)"
    assert lines[3] == f"| {ARMS[1][0]} | **+4.00 [+3.75, +4.25] (3)** | {nothing} | {nothing} | {nothing} |"
    assert lines[-1] == "Bold: significant by Holm's rule for 5 differences."
    assert len(lines) == 2 + len(ARMS) + 2


def test_the_figure_puts_in_brackets_what_is_not_shown_after_the_correction() -> None:
    figure = gain_figure(gain_arms(study(), BED))
    acc, fm = ([text.get_text() for text in panel.texts] for panel in figure.axes)
    assert acc == ["+4.0", "+0.5", "+0.5", "(+0.0)", "(+0.0)", "(+0.0)"]
    assert fm == ["(+0.0)", "(+0.0)", "(+0.0)", "(+0.0)", "-4.0", "-1.0"]
    few = gain_figure(gain_arms(study((20, 21)), BED))
    assert few.axes[0].texts[0].get_text().startswith("(")
