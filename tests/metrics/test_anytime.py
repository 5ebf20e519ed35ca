"""The measures of continual evaluation agree with their papers, on matrices whose measures are found by hand."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ddn_lightning.metrics import anytime

nan = torch.nan
# three tasks, measured three times each; the last of each three is at the task's end
TASKS = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2])
ACCURACIES = torch.tensor(
    [
        [40.0, nan, nan],
        [70.0, nan, nan],
        [90.0, nan, nan],
        [30.0, 50.0, nan],
        [50.0, 60.0, nan],
        [60.0, 80.0, nan],
        [50.0, 20.0, 40.0],
        [40.0, 30.0, 70.0],
        [70.0, 60.0, 95.0],
    ]
)


def test_the_measures_of_a_run_are_those_found_by_hand() -> None:
    found = anytime.anytime_summary(ACCURACIES, TASKS)
    curve = [40, 70, 90, 40, 55, 70, 110 / 3, 140 / 3, 75]
    expected = {
        "average_accuracy_over_steps": sum(curve) / 9,
        "minimum_accuracy": (30 + 20) / 2,  # task 1 in task 2, task 2 in task 3
        "worst_case_accuracy": 95 / 3 + 2 / 3 * 25,
        "average_stability_gap": ((90 - 30) + (60 - 40) + (80 - 20)) / 3,
        "worst_stability_gap": 60,
        "windowed_forgetting": (60 + 60 + 0) / 3,
        "windowed_plasticity": (50 + 40 + 55) / 3,
        "forward_transfer": nan,
    }
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert float(found[name]) == pytest.approx(value, nan_ok=True), name
    assert anytime.accuracy_curve(ACCURACIES, TASKS).tolist() == pytest.approx(curve)
    drops = [nan, nan, nan, 60, 40, 30, (40 + 60) / 2, (50 + 50) / 2, (20 + 20) / 2]
    assert anytime.forgetting_curve(ACCURACIES, TASKS).tolist() == pytest.approx(drops, nan_ok=True)
    assert anytime.plasticity_curve(ACCURACIES, TASKS).tolist() == [40, 70, 90, 50, 60, 80, 40, 70, 95]


def test_the_gap_of_each_task_is_measured_from_the_end_of_the_task_before() -> None:
    gaps = anytime.stability_gaps(ACCURACIES, TASKS)
    assert gaps.nan_to_num(-1).tolist() == [[-1, -1, -1], [60, -1, -1], [20, 60, -1]]


def test_a_window_sees_only_changes_within_it() -> None:
    falling = torch.tensor([[90.0], [80.0], [60.0], [55.0]])
    assert [float(anytime.windowed_forgetting(falling, window)) for window in (1, 2, 3, 4, 9)] == [0, 20, 30, 35, 35]
    assert float(anytime.windowed_plasticity(falling)) == 0


def test_the_evaluation_of_the_untrained_network_counts_for_forward_transfer_only() -> None:
    """GEM: (R[1, 2] - b[2] + R[2, 3] - b[3]) / 2."""
    tasks = torch.tensor([-1, 0, 0, 1, 2])
    accuracies = torch.tensor([[10.0, 20, 30], [50, 5, 5], [80, 24, 31], [60, 70, 36], [50, 60, 90]])
    found = anytime.anytime_summary(accuracies, tasks)
    assert float(found.pop("forward_transfer")) == pytest.approx(((24 - 20) + (36 - 30)) / 2)
    later = anytime.anytime_summary(accuracies[1:], tasks[1:])
    assert later.pop("forward_transfer").isnan()
    assert found == later
    assert float(found["average_accuracy_over_steps"]) == pytest.approx((50 + 80 + 65 + 200 / 3) / 4)  # seen tasks only


def test_what_was_measured_before_a_task_began_does_not_change_the_windowed_measures() -> None:
    tasks = torch.tensor([0, 0, 1, 1])
    seen = torch.tensor([[50.0, torch.nan], [80, torch.nan], [60, 70], [50, 75]])
    found, with_unseen = (anytime.anytime_summary(values, tasks) for values in (seen, seen.nan_to_num(nan=5.0)))
    for name in ("windowed_forgetting", "windowed_plasticity"):
        assert found[name] == with_unseen[name]
    assert found["windowed_plasticity"] == (30 + 5) / 2


def test_a_run_in_its_first_task_has_no_gap_and_one_not_begun_has_nothing() -> None:
    found = anytime.anytime_summary(ACCURACIES[:2], TASKS[:2])
    assert float(found["worst_case_accuracy"]) == 70
    assert [name for name, value in found.items() if value.isnan()] == [
        "minimum_accuracy",
        "average_stability_gap",
        "worst_stability_gap",
        "forward_transfer",
    ]
    assert anytime.anytime_summary(ACCURACIES[:0], TASKS[:0]) == {}
    assert anytime.anytime_summary(ACCURACIES[:1], torch.tensor([-1])) == {}


def largest_drop(values: list[float], window: int) -> float:
    """Of De Lange et al.: the maximum of a[m] - a[n] for m < n in any window, and 0."""
    drops = [a - b for n, b in enumerate(values) for a in values[max(0, n - window + 1) : n]]
    return max([0.0, *drops])


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 100), min_size=2, max_size=30), st.integers(2, 12))
def test_the_windowed_measures_equal_their_definition_for_any_curve(values: list[int], window: int) -> None:
    curve = torch.tensor(values, dtype=torch.float64)[:, None]
    assert float(anytime.windowed_forgetting(curve, window)) == largest_drop([float(v) for v in values], window)
    assert float(anytime.windowed_plasticity(curve, window)) == largest_drop([-float(v) for v in values], window)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 1000))
def test_no_measure_of_a_whole_run_contradicts_another(num_tasks: int, each: int, seed: int) -> None:
    tasks = torch.arange(num_tasks).repeat_interleave(each)
    accuracies: Tensor = 100 * torch.rand(len(tasks), num_tasks, generator=torch.Generator().manual_seed(seed)).double()
    accuracies[torch.arange(num_tasks) > tasks[:, None]] = nan
    found = {name: float(value) for name, value in anytime.anytime_summary(accuracies, tasks).items()}
    final = float(accuracies[-1].mean())
    assert found["worst_case_accuracy"] <= final + 1e-9  # each old task's lowest is at most its last
    if num_tasks > 1:
        assert found["average_stability_gap"] <= found["worst_stability_gap"] + 1e-9
        lowest = [min(accuracies[tasks > i, i].tolist()) for i in range(num_tasks - 1)]
        assert found["minimum_accuracy"] == pytest.approx(sum(lowest) / len(lowest))
        gaps = [
            accuracies[tasks == before][-1, old] - accuracies[tasks == now, old].min()
            for before, now in pairwise(range(num_tasks))
            for old in range(now)
        ]
        assert found["worst_stability_gap"] == pytest.approx(float(max(gaps)))
