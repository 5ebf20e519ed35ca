"""Figures tell runs apart by method, plug-in, what differs and seed, and say which they leave out."""

from dataclasses import replace
from pathlib import Path

import pytest
from made_up import made_up_run

from ddn_lightning.cli.report_command import read_runs
from ddn_lightning.report.figures.comparison_figures import comparison_pictures, not_compared
from ddn_lightning.report.figures.run_figures import Picture
from ddn_lightning.report.figures.style import COLOURS, DASHES
from ddn_lightning.report.run_labels import run_labels
from ddn_lightning.runs.recorded_run import RecordedRun

LONG = "offline-cifar100-c10-500-{}-c5b6efa4"  # as ddn reproduce calls its folders


def three_methods(seeds: int, **sizes: int) -> list[RecordedRun]:
    methods = [("ER", None), ("ER", "DataDistillNet"), ("DERPlusPlus", None)]
    for number, (method, plugin) in enumerate(methods):
        for seed in range(seeds):
            name = LONG.format(f"{number}-{seed}")
            made_up_run(Path("runs") / name, method, plugin, seed, **{"num_classes": 4, "num_tasks": 2, **sizes})
    return read_runs([Path("runs")])


def pictures(runs: list[RecordedRun]) -> dict[str, Picture]:
    return {picture.name: picture for picture in comparison_pictures(runs)}


def test_a_label_has_method_plugin_what_differs_and_seed() -> None:
    runs = three_methods(2)
    found = list(run_labels(runs).values())
    assert found == [f"{name}, seed {seed}" for name in ("ER", "ER + DDN", "DER++") for seed in (0, 1)]
    for name, lr in (("x", 0.1), ("y", 0.1)):
        made_up_run(Path("more") / name, "ER", None, 0, 4, 2, lr=lr)
    labels = run_labels(read_runs([Path("runs"), Path("more")]))
    assert labels["x"] == "ER, lr 0.1, seed 0 (x)"  # the same seed twice: only the name tells them apart
    assert labels["y"] == "ER, lr 0.1, seed 0 (y)"
    assert len(set(labels.values())) == 8
    assert run_labels([RecordedRun("broken", Path("broken"))]) == {"broken": "broken"}


def test_runs_of_one_method_share_a_colour_and_differ_in_their_dashes() -> None:
    figure = pictures(three_methods(2))["task_accuracy"].figure
    lines = {line.get_label(): (line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines}
    names = [f"{name}, seed {seed}" for name in ("ER", "ER + DDN", "DER++") for seed in (0, 1)]
    assert lines == {name: (COLOURS[n // 2], DASHES[n % 2]) for n, name in enumerate(names)}
    assert [text.get_text() for text in figure.legends[0].texts] == names


def test_of_many_seeds_the_mean_of_every_method_is_shown() -> None:
    runs = three_methods(4)
    picture = pictures(runs)["task_accuracy"]
    first, *_ = picture.figure.axes
    assert [line.get_label() for line in first.lines] == ["ER (4)", "ER + DDN (4)", "DER++ (4)"]
    values = [float(run.results.matrix[1, 0]) for run in runs[:4] if run.results]
    assert first.lines[0].get_ydata()[-1] == pytest.approx(sum(values) / 4, abs=1e-4)
    assert "mean of each group (number of runs)" in picture.title
    copies = [replace(runs[0], name=f"run {number}") for number in range(14)]  # one group: no other line to show
    picture = pictures(copies)["task_accuracy"]
    assert picture.title == "Accuracy of each task over training, 10 of 14 runs"
    assert len(picture.figure.axes[0].lines) == 10


def test_captions_name_the_runs_that_are_side_by_side_and_count_the_others() -> None:
    found = pictures(three_methods(2))
    ending = ", 3 of 6 runs: ER, seed 0; ER + DDN, seed 0; DER++, seed 0"
    assert [found[name].title.endswith(ending) for name in ("confusion", "probability")] == [True, True]
    titles = [axes.get_title() for axes in found["confusion"].figure.axes]
    assert [title for title in titles if title] == ["ER, seed 0", "ER + DDN, seed 0", "DER++, seed 0"]


def test_runs_on_other_data_and_other_class_orders_are_named() -> None:
    runs = three_methods(1)
    made_up_run(Path("alone"), num_classes=6, num_tasks=3)
    made_up_run(Path("other"), num_classes=4, num_tasks=2, seed=7, class_order=1)
    (alone, other) = read_runs([Path("alone"), Path("other")])
    assert not_compared([*runs, alone]) == ["alone"]
    assert not_compared([alone]) == []
    assert "class order differs" not in pictures(runs)["task_accuracy"].title
    assert "class order differs" in pictures([*runs, other])["task_accuracy"].title
