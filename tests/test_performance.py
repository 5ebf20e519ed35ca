"""The cost of a step as ratios within one run, as absolute times depend on the machine."""

import pytest

from ddn_lightning import ER
from ddn_lightning.bench.baselines import OURS, PER_IMAGE, WHOLE_BATCH
from ddn_lightning.bench.measure import COMMAND, LIBRARIES, Report, measure
from ddn_lightning.bench.prepared_method import Workload

pytestmark = [
    pytest.mark.benchmark,
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def report() -> Report:
    return measure([ER], Workload(), rounds=4, with_growth=True)


def test_the_exact_update_costs_two_steps_and_beats_unrolling(report: Report) -> None:
    updates = report["updates"]
    assert updates["exact"]["er_steps"] <= 2.15  # 12 passes of a batch through the network, to ER's 6
    assert updates["unrolled"]["ms"] >= 1.3 * updates["exact"]["ms"]
    assert updates["exact"]["relative_error"] < 1e-5


def test_the_cheaper_modes_are_cheaper(report: Report) -> None:
    updates = report["updates"]
    assert updates["matching"]["er_steps"] <= 1.65
    assert updates["head"]["er_steps"] <= 0.6
    assert updates["step"]["er_steps"] <= 0.42
    assert updates["exact"]["er_steps"] / 8 <= 0.3  # by update_every=8


def test_ddn_saves_no_more_for_backward_than_er(report: Report) -> None:
    assert report["steps"]["ER + DDN"]["saved_mib"] <= 1.1 * report["steps"]["ER"]["saved_mib"]
    assert report["updates"]["unrolled"]["saved_mib"] >= 3 * report["updates"]["exact"]["saved_mib"]


def test_the_loop_adds_at_most_15_percent_to_bare_lightning(report: Report) -> None:
    ours = report["loops"][OURS]
    assert ours["over_bare"] <= 1.15
    assert ours["overhead_ms"] <= 0.03 * report["steps"]["ER"]["ms"]


def test_augmentation_and_memory_cost_little(report: Report) -> None:
    augment = report["input"]["augment_us_per_image"]
    assert augment[WHOLE_BATCH] <= 0.15 * augment[PER_IMAGE]
    assert all(memory["er_steps"] <= 0.01 for memory in report["input"]["add_and_draw"].values())


def test_the_command_starts_within_two_and_a_half_times_its_imports(report: Report) -> None:
    assert report["start_up"][COMMAND] <= 2.5 * report["start_up"][LIBRARIES]


def test_cost_does_not_grow_with_memory_or_classes_and_shrinks_with_ranks(report: Report) -> None:
    cost = {(g["axis"], g["value"]): g for g in report["growth"]}
    for kind in ("er_ms", "ddn_ms"):
        assert cost["buffer_size", 50_000][kind] <= 1.1 * cost["buffer_size", 200][kind]
        assert cost["num_classes", 200][kind] <= 1.1 * cost["num_classes", 10][kind]
        assert cost["batch", 64][kind] <= 2.2 * cost["batch", 32][kind]
        assert cost["devices", 2][kind] <= 0.75 * cost["devices", 1][kind]
