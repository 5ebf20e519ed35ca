"""Our numbers beside the paper's: which runs repeat which cell, and that the manual shows what comes of it."""

from dataclasses import replace
from pathlib import Path

import documents
import pytest
from documents import generated

from ddn_lightning.report.beside_paper import (
    agreement,
    agreement_table,
    by_images,
    cells_beside_paper,
    paper_target_of,
    per_task_table,
)
from ddn_lightning.report.figures.beside_paper import beside_paper_figure
from ddn_lightning.report.measured import HARD_CONTROL, Group, MeasuredRun, difference, measured_runs, reported
from ddn_lightning.report.paper import paper_table, paper_targets
from ddn_lightning.report.statistic import estimate
from ddn_lightning.reproduce.cell import Cell

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


def test_the_manual_shows_how_our_numbers_agree_with_the_papers() -> None:
    cells = cells_beside_paper(measured_runs())
    assert generated(documents.TEXT, "agreement").strip() == agreement_table(cells).strip()
    assert generated(documents.TEXT, "by task").strip() == per_task_table(cells).strip()
    drawn = (ROOT / "docs/pictures/beside_paper.svg").read_text()
    figure = beside_paper_figure(cells)
    labels = [panel.get_title() for panel in figure.axes] + [text.get_text() for text in figure.legends[0].texts]
    assert [label for label in labels if f"<!-- {label} -->" not in drawn] == []


def test_what_the_manual_says_of_agreement_is_so() -> None:
    rows = by_images(cells_beside_paper(measured_runs()))
    for members in rows.values():
        assert agreement(members, "acc").correlation > agreement(members, "fm").correlation > 0
    full, small = ({(c.title, c.target.cell.data, c.group.buffer_size): c for c in cells} for cells in rows.values())
    er = full["ER", "cifar10", 200]
    appendix = {target.cell: target.per_task for target in paper_table("per_task")}[er.target.cell]
    assert max(abs(ours - paper) for ours, paper in zip(er.per_task, appendix, strict=True)) < 3
    assert max(abs(er.acc.mean - er.target.acc), abs(er.fm.mean - er.target.fm)) < 1
    for cells, title in ((full, "Mnemonics"), (small, "Mnemonics"), (small, "LoDM")):
        one, alone = cells[title, "cifar10", 200], cells["ER", "cifar10", 200]
        assert one.target.fm < alone.target.fm - 10
        assert one.fm.mean > alone.fm.mean - alone.fm.std  # as ER does, or more
    assert full["BiC", "cifar10", 200].fm.mean < full["BiC", "cifar10", 200].target.fm - 20
    usual = [
        c for (title, data, _), c in full.items() if data == "cifar10" and title not in ("BiC", "Mnemonics", "LoDM")
    ]
    forgetting, accuracy = agreement(usual, "fm"), agreement(usual, "acc")
    of_fm, of_acc = (" and its mean difference ".join(forgetting.numbers), " and ".join(accuracy.numbers))
    text = " ".join(documents.PAGES["docs/science/results.md"].split())
    assert f"is {of_fm} ({forgetting.cells} cells), that of ACC {of_acc}." in text
    icarl = full["iCaRL", "cifar10", 200]
    assert f"{icarl.acc.mean:.2f} / {icarl.fm.mean:.2f} (one seed)" in text
    assert max(abs(icarl.acc.mean - icarl.target.acc), abs(icarl.fm.mean - icarl.target.fm)) < 1.5
    for host in ("ER", "CLS-ER", "DER++", "ER-ACE"):
        assert small[f"{host} + DDN", "cifar10", 200].acc.mean > small[host, "cifar10", 200].acc.mean
    assert abs(small["ER-ACE + DDN", "cifar10", 200].fm.mean - small["ER-ACE", "cifar10", 200].fm.mean) < 1


def test_what_the_manual_says_of_the_seed_of_the_other_hosts_is_so() -> None:
    groups = reported(measured_runs())
    in_float32 = Group("cifar10", "ResNet18 width 20", "online", 200, "er", "none", "")
    in_bfloat16 = replace(in_float32, network="ResNet18 width 20 in bf16-mixed")
    (half,), (full,) = ([run for run in groups[group] if run.seed == 20] for group in (in_bfloat16, in_float32))
    mean = estimate(run.acc for run in groups[in_float32]).mean
    assert f"ER has {half.acc:.2f} on it in bf16-mixed and {full.acc:.2f} in float32" in documents.TEXT
    assert f"mean over six is {mean:.2f}" in documents.TEXT
    assert half.cpu_minutes / full.cpu_minutes == pytest.approx(0.6, abs=0.05)
    hosts = [groups[replace(in_bfloat16, method=host)][0].acc for host in ("derpp", "cls_er", "er_ace")]
    assert max(hosts) - min(hosts) < abs(full.acc - half.acc)


def test_what_the_manual_says_of_full_size_on_one_seed_is_so() -> None:
    groups, paper = reported(measured_runs()), paper_targets()
    text = " ".join(documents.PAGES["docs/science/results.md"].split())
    bed = ("cifar10", "ResNet18 width 20 in bf16-mixed", "online", 200)

    def gain(method: str, *arm: str) -> float:
        (one,), (alone,) = groups[Group(*bed, method, *arm)], groups[Group(*bed, method, "none", "")]
        return round(one.acc - alone.acc, 1)

    hosts = ("derpp", "cls_er", "er_ace")
    hard, ours = ([gain(host, *arm) for host in hosts] for arm in (("none", HARD_CONTROL), ("ddn", "lookahead=step")))
    cells = [[paper[Cell("online", "cifar10", 200, host, plugin)].acc for host in hosts] for plugin in ("none", "ddn")]
    theirs = [round(with_ddn - alone, 1) for alone, with_ddn in zip(*cells, strict=True)]
    expected = f"{min(hard)} to {max(hard)} points more, with DDN from {-min(ours)} less to {max(ours)} more"
    assert f"{expected}, where the paper has {min(theirs)} to {max(theirs)} more." in text
    runs = [
        groups[Group("cifar10", "ResNet18 width 20", "online", 500, "er", *arm)][0]
        for arm in (("none", ""), ("ddn", "lookahead=step"))
    ]
    for run, plugin in zip(runs, ("none", "ddn"), strict=True):
        target = paper[Cell("online", "cifar10", 500, "er", plugin)]
        assert f"{run.acc:.2f} / {run.fm:.2f} where" in text
        assert f"has {target.acc:.2f} / {target.fm:.2f}" in text
    calibrated = [f"{run.calibrated_acc:.2f} / {run.calibrated_fm:.2f}" for run in runs]
    assert f"Calibrated, they have {' and '.join(calibrated)}." in text


def test_what_the_manual_says_of_cifar_100_is_so() -> None:
    groups, paper = reported(measured_runs()), paper_targets()
    bed = ("cifar100", "ResNet18 width 20", "online", 2000)
    arms = {"er": ("none", ""), "er + ddn": ("ddn", "lookahead=step"), "hard": ("none", HARD_CONTROL)}
    runs = {name: groups[Group(*bed, "er", *arm)] for name, arm in arms.items()}
    runs["er_ace"] = groups[Group(*bed, "er_ace", "none", "")]
    means = {name: estimate(run.acc for run in members).mean for name, members in runs.items()}
    targets = [paper[Cell("online", "cifar100", 2000, *arm)].acc for arm in (("er",), ("er", "ddn"), ("er_ace",))]
    shown = [means[name] for name in ("er", "er + ddn", "er_ace")]
    assert sorted(targets) == targets
    assert sorted(shown) == shown
    assert means["hard"] > max(shown)
    assert all(5 < theirs - ours < 7 for theirs, ours in zip(targets, shown, strict=True))
    text = " ".join(documents.PAGES["docs/science/results.md"].split())
    assert f"DDN gains {means['er + ddn'] - means['er']:.2f} (paper: {targets[1] - targets[0]:.2f})." in text
    assert f"gains {means['hard'] - means['er']:.2f} and is above all three" in text
    ends = " and ".join(f"{run.per_task[-1]:.1f}" for run in runs["er_ace"])
    assert f"it hardly learns the last task, {ends} %." in text
    assert min(runs, key=lambda name: estimate(run.fm for run in runs[name]).mean) == "er_ace"


def test_what_the_manual_says_of_offline_training_is_so() -> None:
    groups = reported(measured_runs())
    bed = ("cifar10@16, 500 images a class", "ResNet18 width 16", "offline, 20 epochs", 200)
    er, derpp = (Group(*bed, method, "none", "") for method in ("er", "derpp"))
    arms = {"plugin": "ddn", "options": "lookahead=step"}, {"options": HARD_CONTROL}

    def gain(one: Group, other: Group, kinds: tuple[str, str]) -> float:
        found = difference(groups, one, other, "acc", kinds)
        assert found is not None
        return found.mean

    running, calibrated = ("running", "running"), ("calibrated", "calibrated")
    ddn, hard = (gain(replace(er, **arm), er, running) for arm in arms)
    shown = f"DDN gives ER {ddn:+.2f}, the hard draw {hard:+.2f}"
    shown += f", calibration {gain(er, er, ('calibrated', 'running')):+.2f}, and on top"
    text = " ".join(documents.PAGES["docs/science/results.md"].split())
    assert shown in text
    assert all(0 < gain(replace(er, **arm), er, calibrated) < 1 for arm in arms)
    ddn, hard = ([gain(replace(derpp, **arm), derpp, kinds) for kinds in (running, calibrated)] for arm in arms)
    shown = (
        f"DER++ gains {ddn[0]:+.2f} with DDN, calibrated {ddn[1]:+.2f}; {hard[0]:+.2f} and {hard[1]:+.2f} with the hard"
    )
    assert shown in text
    assert {len(groups[replace(group, **arm)]) for group in (er, derpp) for arm in ({}, *arms)} == {2}


def test_what_the_manual_says_of_the_papers_oddities_is_so() -> None:
    targets = list(paper_targets().values())
    assert sum(target.cell.setting == "offline" and target.acc + target.fm > 100 for target in targets) == 4
    icarl = {(one.cell.data, one.cell.buffer_size): one.acc for one in targets if one.cell.method == "icarl"}
    assert all(icarl[data, 2000] == icarl[data, 5000] for data in ("cifar100", "tiny_imagenet"))
    lodm = {(one.cell.data, one.cell.buffer_size): one.acc for one in targets if one.cell.method == "lodm"}
    assert lodm["cifar10", 500] < lodm["cifar10", 200]


@pytest.mark.parametrize(
    ("method", "buffer_size", "table1", "appendix"),
    [
        ("er_ace", 200, (43.37, 17.60), (44.23, 21.59)),
        ("er_ace", 500, (50.02, 14.50), (49.31, 16.84)),
        ("er", 500, (48.11, 30.07), (48.11, 32.30)),
    ],
)
def test_the_paper_contradicts_itself_as_the_manual_says(
    method: str, buffer_size: int, table1: tuple[float, float], appendix: tuple[float, float]
) -> None:
    key = ("online", "cifar10", buffer_size, method, "ddn")
    for name, numbers in (("table1", table1), ("per_task", appendix)):
        (found,) = [one for one in paper_table(name) if tuple(vars(one.cell).values())[:5] == key]
        assert (found.acc, found.fm) == numbers
    text = documents.PAGES["docs/science/results.md"]
    assert all(f"{acc:.2f} / {fm:.2f}" in text for acc, fm in (table1, appendix))
