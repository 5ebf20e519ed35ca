"""Our numbers beside the paper's: which runs repeat which cell, and that the manual shows what comes of it."""

from pathlib import Path

from study.beside_paper import (
    agreement,
    agreement_table,
    by_images,
    cells_beside_paper,
    paper_target_of,
    per_task_table,
)
from study.beside_paper_figure import beside_paper_figure
from study.measured import Group, MeasuredRun

ROOT = Path(__file__).parents[2]
BED = ("cifar10", "ResNet18 width 20", "online", 200)
SMALL = ("cifar10@16", "ResNet18 width 16", "online", 200)
TASKS = (1.0, 2.0, 3.0, 4.0, 5.0)


def run(
    acc: float,
    seed: int = 20,
    fm: float | None = 40.0,
    bed: tuple[str, str, str, int] = BED,
    arm: tuple[str, str, str] = ("er", "none", ""),
    per_task: tuple[float, ...] = TASKS,
) -> MeasuredRun:
    return MeasuredRun(Group(*bed, *arm), seed, acc, fm, per_task, 90.0, 0.0, 1.0, "ddn fit")


def test_only_the_same_data_setting_memory_method_and_plugin_is_compared() -> None:
    group = Group(*BED, "er", "label_smoothing", "epsilon=0.5")
    assert paper_target_of(group).acc == 34.24
    assert paper_target_of(Group(*SMALL, "er", "ddn", "lookahead=step")).acc == 41.93
    assert paper_target_of(Group(*BED, "er", "label_smoothing", "epsilon=0.5 over old classes")) is None
    assert paper_target_of(Group(*BED, "er", "none", "old_memory_weight=1")) is None
    assert paper_target_of(Group(*BED, "pcr", "none", "")) is None
    assert paper_target_of(Group("cifar10@16, 500 per class", *SMALL[1:], "er", "none", "")) is None
    assert paper_target_of(Group("cifar10", "ResNet18 width 20", "online", 300, "er", "none", "")) is None
    assert paper_target_of(Group("cifar10", "ResNet18 width 20", "offline", 200, "er", "none", "")).acc == 54.91


def test_seeds_that_chose_do_not_count_and_calibrated_numbers_are_left_out() -> None:
    runs = [run(10.0, seed=3), run(34.0, 20), run(38.0, 21, fm=None), run(36.0, 22, per_task=(4.0, 5.0, 6.0, 7.0, 8.0))]
    (cell,) = cells_beside_paper(runs)
    assert (cell.seeds, cell.acc.mean, cell.acc.std, cell.fm.n) == ((20, 21, 22), 36.0, 2.0, 2)
    assert cell.per_task == (2.0, 3.0, 4.0, 5.0, 6.0)
    assert cell.has_spread


def test_the_exact_gradient_stands_for_the_cell_wherever_it_was_run() -> None:
    step = [run(41.0, seed, arm=("er", "ddn", "lookahead=step")) for seed in (20, 21)]
    exact = run(40.0, arm=("er", "ddn", ""))
    for runs in ([*step, exact], [exact, *step]):
        (cell,) = cells_beside_paper(runs)
        assert cell.acc.mean == 40.0
    (cell,) = cells_beside_paper(step)
    assert cell.acc.mean == 41.0


def test_sizes_of_images_are_never_mixed() -> None:
    arms = [("er", "none", ""), ("er", "ddn", ""), ("bic", "none", "")]  # 36.05, 41.93 and 27.71 in the paper
    cells = cells_beside_paper(
        [run(acc, bed=SMALL, arm=arm) for acc, arm in zip((30.0, 20.0, 10.0), arms, strict=True)]
        + [run(acc, arm=arm) for acc, arm in zip((36.05, 42.93, 29.71), arms, strict=True)]
    )
    full, small = by_images(cells).values()
    assert str(agreement(full, "acc")) == "rank correlation +1.00, mean difference +1.00, 3 cells"
    assert str(agreement(small, "acc")) == "rank correlation +0.50, mean difference -15.23, 3 cells"
    assert [line.split(" | ")[0] for line in agreement_table(cells).splitlines()[2:]] == [
        "| full size, cifar10",
        "| 16 x 16, cifar10",
    ]


def test_cells_without_forgetting_count_for_accuracy_only() -> None:
    cells = cells_beside_paper([run(36.05, fm=None)])
    assert agreement(cells, "acc").correlation is None
    assert agreement(cells, "fm") is None
    assert agreement_table(cells).splitlines()[2].endswith("| 1 | 0 | - | +0.00 | - | - |")
    assert beside_paper_figure(cells).axes[1].get_title() == "FM: nothing to compare"


def test_each_task_stands_beside_that_of_the_appendix() -> None:
    assert per_task_table(cells_beside_paper([run(34.0, arm=("bic", "none", ""))])) == ""
    table = per_task_table(cells_beside_paper([run(34.0), run(30.0, bed=SMALL)])).splitlines()
    assert table[2] == (
        "| full size | 200 | ER | 20 | 1.0 / 18.4 | 2.0 / 18.6 | 3.0 / 23.4 | 4.0 / 36.4 | 5.0 / 83.4 |"
    )
    assert table[3].startswith("| 16 x 16 | 200 | ER | 20 | 1.0 / 18.4 |")


def test_a_point_of_the_figure_is_filled_from_three_seeds_on() -> None:
    few = [run(acc, seed, arm=("bic", "none", "")) for acc, seed in ((20.0, 20), (22.0, 21))]
    many = [run(acc, seed) for acc, seed in ((34.0, 20), (38.0, 21), (36.0, 22))]
    for runs, is_filled in ((few, False), (many, True)):
        panel = beside_paper_figure(cells_beside_paper(runs)).axes[0]
        (bars,) = panel.containers
        point = bars[0]
        assert (point.get_markerfacecolor() != "white") == is_filled
        assert (point.get_xdata()[0], point.get_ydata()[0]) == (27.71, 21.0) if not is_filled else (36.05, 36.0)
        assert bars.has_yerr


def test_the_figure_joins_a_method_with_and_without_its_plugin_and_names_other_beds() -> None:
    other = ("cifar100", "ResNet18 width 20", "online", 2000)
    larger = ("cifar10", *other[1:3], 500)
    runs = [run(34.0), run(40.0, arm=("er", "ddn", "")), run(16.0, bed=other), run(45.0, bed=larger)]
    panel = beside_paper_figure(cells_beside_paper(runs)).axes[0]
    lines = [list(line.get_xdata()) for line in panel.lines]
    assert [36.05, 41.93] in lines
    assert [text.get_text() for text in panel.texts] == ["cifar100", "500"]
