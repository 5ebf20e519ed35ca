"""The tables of comparisons and the sentences of the front page."""

import re

from study.comparisons import (
    ALONE,
    EXACT,
    HARD,
    PAIRS,
    SMALL,
    SPREAD,
    STEP,
    TWO_STEPS,
    Arm,
    calibration_table,
    compared,
    comparison_table,
)
from study.headline import NARROW, PAPER, Bed, headline, levels
from study.measured import Group, MeasuredRun, measured_runs

NOISE = {20: 0.1, 21: -0.1, 22: 0.2, 23: -0.2}


def runs(
    arm: Arm, acc: float, fm: float, bed: Bed = SMALL, method: str = "er", jitter: float = 1.0
) -> list[MeasuredRun]:
    """Four seeds that lie five points apart; calibrated, six points more ACC and twenty less FM."""
    return [
        MeasuredRun(
            Group(*bed, method, *arm),
            seed,
            acc + 5 * (seed - 20) + jitter * noise,
            fm + jitter * noise,
            (),
            acc + 6 + 5 * (seed - 20),
            fm - 20 + 2 * jitter * noise,
            2.0,
            "ddn fit",
        )
        for seed, noise in NOISE.items()
    ]


def test_a_row_has_the_differences_of_common_seeds_with_either_statistics() -> None:
    table = [*runs(ALONE, 30, 50), *runs(EXACT, 36, 40, jitter=2.0)[:3], *runs(HARD, 34, 42)]
    found = {row.title: row for row in compared(table, "controls")}
    assert set(found) == {"DDN, exact against ER", "DDN, exact against hard draw", "hard draw against ER"}
    row = found["DDN, exact against ER"]
    assert row.seeds == (20, 21, 22)
    assert [round(value.mean, 3) for value in row.values if value] == [6.067, -9.933, 6.0, -9.867]
    text = comparison_table(list(found.values()))
    assert "| DDN, exact against ER | 20-22 | **+6.07 [" in text
    assert text.endswith("Bold: significant by Holm's rule for 12 differences.")


def test_hosts_and_sizes_have_rows_of_their_own() -> None:
    table = [*runs(ALONE, 30, 50, method="derpp"), *runs(STEP, 31, 49, method="derpp")]
    assert [row.title for row in compared(table, "hosts")] == ["DER++: DDN, step against DER++"]
    assert compared(table, "sizes") == []
    table = [*runs(ALONE, 30, 50, NARROW), *runs(EXACT, 31, 49, NARROW)]
    assert [row.title for row in compared(table, "sizes")] == ["CIFAR-10, width 20, M = 200: DDN, exact against ER"]


def test_calibration_is_held_against_the_same_runs() -> None:
    table = calibration_table([*runs(ALONE, 30, 50), *runs(ALONE, 33, 40, method="derpp")])
    assert "| CIFAR-10 at 16x16, width 16, M = 200 | ER | 20-23 | **+6.00 [+5.71, +6.29] (4)** | **-20.00 [" in table
    assert "| DER++ | 20-23 |" in table


def test_the_front_page_says_what_is_known_of_each_test_bed() -> None:
    small = [*runs(ALONE, 30, 50), *runs(EXACT, 36, 40), *runs(HARD, 34, 42), *runs(SPREAD, 36, 40)]
    few = headline(small)
    assert few.count("\n- ") + few.startswith("- ") == 1
    assert "hard labels on the same draw by **+2.00 [" in few
    wide = [*runs(ALONE, 40, 50, PAPER), *runs(EXACT, 46, 40, PAPER)]
    more = headline([*small, *wide, *runs(TWO_STEPS, 38, 55)])
    assert re.findall(r"- (.*?, M = 200):", more) == [
        "CIFAR-10, width 64, M = 200",
        "CIFAR-10, width 64, M = 200",
        "CIFAR-10 at 16x16, width 16, M = 200",
        "CIFAR-10 at 16x16, width 16, M = 200",
    ]
    assert "differs from DDN by **+2.00 [" in more
    assert "| CIFAR-10, width 64, M = 200 | ER | 20-23 | 47.50 ± 6.3" in levels(wide)


def test_every_comparison_names_arms_that_were_measured_or_are_to_come() -> None:
    known = {(group.plugin, group.options) for group in (run.group for run in measured_runs())}
    to_come = {arm for arm in (arm for pairs in PAIRS.values() for pair in pairs for arm in pair) if arm not in known}
    assert {option for _, option in to_come} <= TO_COME


TO_COME = {
    "Eq. 7 literally",
    "one batch of old memory, hard labels",
    "G_old in the inner loop",
    "replay_batch_size=64",
    "Continual Normalization",
    "AdaB2N",
    "GroupNorm",
    "one forward pass of both batches",
    "one outer batch of old memory and the incoming one",
    "updates_per_step=2",
    "G from task 2",
    "inner_lr=0.3",
}
