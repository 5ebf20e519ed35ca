"""Where the fall of FM with calibrated statistics comes from."""

import pytest

from study.forgetting_split import best_and_final, split_table
from study.measured import Group, MeasuredRun, measured_runs

BED = ("cifar10", "ResNet18 width 20", "online", 200)
RUNNING = ((90.0,), (50.0, 80.0))
CALIBRATED = ((80.0,), (60.0, 70.0))


def run(seed: int, arm: tuple[str, str, str] = ("er", "none", ""), raised: float = 0.0) -> MeasuredRun:
    first, (old, new) = CALIBRATED
    calibrated = (first, (old + raised, new))
    return MeasuredRun(
        Group(*BED, *arm), seed, 65.0, 40.0, (50.0, 80.0), 65.0, 20.0, 1.0, "ddn fit", RUNNING, calibrated
    )


def test_a_fall_of_forgetting_is_a_lower_best_and_a_higher_end() -> None:
    others = [("er", "ddn", ""), ("er", "none", "old_memory_weight=1"), ("der", "none", "")]
    lines = split_table([run(20), run(21, raised=4.0), run(3), *(run(20, arm) for arm in others)]).splitlines()
    assert lines[2:] == ["| cifar10 | ResNet18 width 20 | 200 | 20 21 | -22.00 | -10.00 | +12.00 |"]


def test_the_parts_are_those_of_the_recorded_forgetting() -> None:
    for one in measured_runs():
        for matrix, fm in ((one.matrix, one.fm), (one.calibrated_matrix, one.calibrated_fm)):
            if matrix and fm is not None:
                best, final = best_and_final(matrix)
                assert best - final == pytest.approx(fm, abs=0.02)
