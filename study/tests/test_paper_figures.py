"""The paper's figures from run folders and from measured runs."""

from pathlib import Path

import pytest

from ddn_lightning.runs.recorded_run import read_run
from study.measured import Group, MeasuredRun
from study.paper_figures import (
    FIGURES,
    confusion_figure,
    main,
    probability_figure,
    read_runs,
    task_accuracy_figure,
    weights_figure,
)

BED = ("cifar10@16", "ResNet18 width 16", "online", 200)


def test_each_figure_shows_the_values_of_the_runs(recorded_runs: Path) -> None:
    folders = [recorded_runs / "er", recorded_runs / "ddn"]
    runs = read_runs(folders)
    assert list(runs) == ["ER", "ER + DDN"]
    er, ddn = (read_run(folder) for folder in folders)
    panel = probability_figure(runs).axes[3]
    heights = [bar.get_height() for bar in panel.patches[:20]]
    assert heights == pytest.approx([*er.observed.probability[3].tolist(), *ddn.observed.probability[3].tolist()])
    shares = confusion_figure(runs).axes[1].images[0].get_array()
    counts = ddn.observed.confusion.double()
    assert shares.tolist() == [pytest.approx((row / row.sum()).tolist()) for row in counts]
    lines = task_accuracy_figure(runs).axes[1].get_lines()
    drawn = [line.get_ydata().tolist() for line in lines if len(line.get_ydata()) == 4 and line.get_marker() != "_"]
    assert drawn[0] == pytest.approx(er.results.matrix[1:, 1].tolist())


def test_runs_of_one_method_are_averaged(recorded_runs: Path) -> None:
    run = read_run(recorded_runs / "er")
    twice = probability_figure({"ER": [run, run]})
    once = probability_figure({"ER": [run]})
    heights = [[bar.get_height() for bar in figure.axes[0].patches] for figure in (once, twice)]
    assert heights[0] == pytest.approx(heights[1])


def test_the_command_writes_a_picture_for_each_figure(recorded_runs: Path, tmp_path: Path) -> None:
    main([str(recorded_runs / "er"), "--pictures", str(tmp_path)])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"paper_{name}.svg" for name in FIGURES)
    with pytest.raises(SystemExit, match="stopped must be a finished run with observations"):
        main([str(recorded_runs / "stopped")])


def test_the_weights_have_the_exact_gradient_once_all_points_were_measured() -> None:
    names = ("", "alpha=0.5, beta=0.9", "alpha=2, beta=0.9", "alpha=1, beta=0", "alpha=1, beta=0.5", "alpha=1, beta=1")

    def runs(lookahead: str, acc: float, chosen: tuple[str, ...] = names) -> list[MeasuredRun]:
        options = [", ".join(filter(None, (lookahead, name))) for name in chosen]
        return [
            MeasuredRun(Group(*BED, "er", "ddn", name), 20, acc + place, 50.0, (), None, None, None, "ddn fit")
            for place, name in enumerate(options)
        ]

    step, exact = runs("lookahead=step", 30.0), runs("", 40.0)
    for given, base in (([*step, *exact[:3]], 30.0), ([*step, *exact], 40.0)):
        alphas, betas = weights_figure(given, BED).axes
        assert alphas.get_lines()[0].get_ydata().tolist() == [base + 1, base, base + 2]
        assert betas.get_lines()[0].get_ydata().tolist() == [base + 3, base + 4, base, base + 5]
