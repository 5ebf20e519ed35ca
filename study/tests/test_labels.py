"""Labels that were tried: chosen on one seed, held against their controls on others."""

from study.labels import LABELS, label_table
from study.measured import Group, MeasuredRun, measured_runs

BED = ("cifar10@16", "ResNet18 width 16", "online", 200)
HALVES = "inner and outer from disjoint halves"


def run(plugin: str, options: str, seed: int, acc: float, fm: float) -> MeasuredRun:
    """A run whose values with running statistics would show if they were taken."""
    return MeasuredRun(Group(*BED, "er", plugin, options), seed, 99.0, 99.0, (), acc, fm, 2.0, "ddn fit")


def test_a_label_is_held_against_both_controls_on_the_fresh_seeds_that_they_share() -> None:
    runs = [run("none", "", seed, 30.0 + seed, 20.0) for seed in (0, 20, 21, 22, 23)]
    runs += [run("none", "old_memory_weight=1", seed, 29.0 + seed, 18.0) for seed in (0, 20, 21, 22)]
    runs += [run("ddn", HALVES, seed, 31.5 + seed, 19.0) for seed in (0, 20, 21, 22)]
    rows = {line.split(" | ")[0]: line.split(" | ")[1:] for line in label_table(runs, BED).splitlines()}
    nothing_learned = [cells for title, cells in rows.items() if title.startswith("| ER")]
    assert nothing_learned == [["30.00", "20.00", "-", "-", "**+1.00 [+1.00, +1.00] (3)** |"]]
    halves = next(cells for title, cells in rows.items() if "disjoint" in title)
    acc, fm, hard = "**+1.50 [+1.50, +1.50] (3)**", "**-1.00 [-1.00, -1.00] (3)**", "**+2.50 [+2.50, +2.50] (3)** |"
    assert halves == ["31.50", "19.00", acc, fm, hard]


def test_a_label_without_fresh_seeds_shows_its_choosing_seed_only() -> None:
    table = label_table([run("ddn", HALVES, 0, 31.5, 19.0), run("ddn", HALVES, 1, 40.0, 19.0)], BED)
    assert "disjoint halves of the memory | 31.50 | 19.00 | - | - | - |" in table
    assert "40.00" not in table


def test_every_label_that_is_shown_was_measured() -> None:
    known = {run.group for run in measured_runs() if run.calibrated_acc is not None}
    assert [title for title, *arm in LABELS if Group(*BED, "er", *arm) not in known] == []
