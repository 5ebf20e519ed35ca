"""Draws the paper's figures of predictions from run folders: ``python -m study.paper_figures RUN RUN ...``.

Writes Fig. 3, predicted probabilities by class, Fig. 5, confusion, and Fig. 6, accuracy of each task over training,
into ``docs/pictures``. Runs of one method and plug-in are averaged over their seeds. All with the BatchNorm statistics
of the run's main evaluation. At most two panels stand side by side, for phones. Fig. 4 is drawn from ``measured.csv``
by :mod:`study.refresh`.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from torch import Tensor

from ddn_lightning.report.figures.accuracy import alpha_beta_figure
from ddn_lightning.report.figures.predictions import normalised
from ddn_lightning.report.figures.style import COLOURS, class_space, heat_map, in_style, panels, save_as, series
from ddn_lightning.report.run_labels import method_title
from ddn_lightning.report.statistic import Estimate, estimate
from ddn_lightning.runs.recorded_run import RecordedRun, read_run
from study.ablation import DDN
from study.measured import MEASURES, Group, MeasuredRun, reported

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
COLUMNS = 2  # of panels
Runs = Mapping[str, Sequence[RecordedRun]]  # by method and plug-in
# Alpha and beta with the options of the groups that have them; without options they are 1 and 0.9.
ALPHAS = {0.5: "alpha=0.5, beta=0.9", 1.0: "", 2.0: "alpha=2, beta=0.9"}
BETAS = {0.0: "alpha=1, beta=0", 0.5: "alpha=1, beta=0.5", 0.9: "", 1.0: "alpha=1, beta=1"}


def read_runs(folders: Sequence[Path]) -> dict[str, list[RecordedRun]]:
    """Finished runs with observations, by method and plug-in.

    Raises:
        SystemExit: If a folder has no such run.
    """
    runs: dict[str, list[RecordedRun]] = {}
    for folder in folders:
        run = read_run(folder)
        if run.results is None or run.observed is None or run.observed.confusion is None or not run.is_finished:
            raise SystemExit(f"{folder} must be a finished run with observations: {'; '.join(run.problems)}")
        runs.setdefault(method_title(run.results), []).append(run)
    return runs


def probability_figure(runs: Runs) -> Figure:
    """The mean probability of each class, in a panel for each true class (Fig. 3)."""
    tables = {name: _mean(members, lambda run: _observed(run, "probability")) for name, members in runs.items()}
    names = _class_names(runs)
    rows = -(-len(names) // COLUMNS)
    with in_style():
        size, margins = (3.3, 1.75), (0.2, 0.35, 0.1, 0.35)
        figure, axes = panels(rows, COLUMNS, size=size, margins=margins, edge=0.5, sharex=True, sharey=True)
        for label, panel in enumerate(axes):
            panel.set_visible(label < len(names))
            for number, (name, table) in enumerate(tables.items()):
                if label < len(names):
                    places = [
                        place + (number - (len(tables) - 1) / 2) * 0.8 / len(tables) for place in range(len(names))
                    ]
                    colour = COLOURS[number % len(COLOURS)]
                    panel.bar(places, table[label].tolist(), 0.8 / len(tables), label=name, color=colour)
            panel.axvspan(label - 0.5, label + 0.5, color="#9a9a9a", alpha=0.25, linewidth=0)
            panel.set(title=f"{label}: {names[min(label, len(names) - 1)]}", ylim=(0, 1.02))
            panel.set_xticks(range(len(names)))
            panel.grid(axis="x", visible=False)
        _finish(figure, axes[: len(names)], "probability", "class")
    return figure


def confusion_figure(runs: Runs) -> Figure:
    """The share of predictions by true class (rows), a panel for each method one below the other (Fig. 5)."""
    tables = {
        name: _mean(members, lambda run: normalised(_observed(run, "confusion"))) for name, members in runs.items()
    }
    names = _class_names(runs)
    with in_style():
        space = class_space(names)
        figure, axes = panels(len(tables), 1, size=(4.4 + space, 3.9 + space), margins=(space, space, 0.75, 0.35))
        for panel, (name, table) in zip(axes, tables.items(), strict=True):
            heat_map(figure, panel, table.numpy(), Normalize(0, 1), names)
            panel.set(title=name, xlabel="predicted class", ylabel="true class")
    return figure


def task_accuracy_figure(runs: Runs) -> Figure:
    """The accuracy of each task after each task, in a panel for each task, ± standard deviation (Fig. 6)."""
    matrices = {name: [run.results.matrix.double() for run in members if run.results] for name, members in runs.items()}
    number = len(next(iter(matrices.values()))[0])
    rows = -(-number // COLUMNS)
    with in_style():
        size, margins = (3.3, 2.0), (0.2, 0.35, 0.1, 0.35)
        figure, axes = panels(rows, COLUMNS, size=size, margins=margins, edge=0.5, sharex=True, sharey=True)
        for task, panel in enumerate(axes):
            panel.set_visible(task < number)
            for index, (name, found) in enumerate(matrices.items()):
                if task < number:
                    _line(panel, [matrix[task:, task] for matrix in found], task, index, name)
            panel.set(title=f"task {task + 1}", ylim=(0, 103), xticks=range(1, number + 1))
        _finish(figure, axes[:number], "accuracy (%)", "tasks learned")
    return figure


def weights_figure(runs: Sequence[MeasuredRun], bed: tuple[str, str, str, int]) -> Figure:
    """ACC and FM by alpha and by beta, with running statistics (Fig. 4).

    The gradient is exact, if all points were measured with it, and otherwise ``step``.

    Args:
        runs: Runs, of which those count that served no choice.
        bed: Data, network, setting and buffer size.
    """
    known = reported(runs)
    for lookahead in ("", DDN[1]):
        points = [
            {
                value: _point(known, bed, ", ".join(filter(None, (lookahead, options))))
                for value, options in names.items()
            }
            for names in (ALPHAS, BETAS)
        ]
        if all(point is not None for panel in points for point in panel.values()):
            break
    return alpha_beta_figure(*({value: p for value, p in panel.items() if p is not None} for panel in points))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m study.paper_figures", description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", help="folders of finished runs")
    parser.add_argument("--pictures", type=Path, default=PICTURES, help="where to write the figures")
    given = parser.parse_args(arguments)
    runs = read_runs(given.runs)
    for name, draw in FIGURES.items():
        save_as(draw(runs), given.pictures / f"paper_{name}.svg")


def _mean(runs: Sequence[RecordedRun], of: Callable[[RecordedRun], Tensor]) -> Tensor:
    return torch.stack([of(run).double() for run in runs]).mean(dim=0)


def _observed(run: RecordedRun, name: str) -> Tensor:
    table: Tensor = getattr(run.observed, name)
    return table


def _class_names(runs: Runs) -> list[str]:
    run = next(iter(runs.values()))[0]
    assert run.results is not None
    assert run.observed is not None
    return list(run.results.class_names or map(str, range(run.observed.num_classes)))


def _line(panel: Axes, columns: Sequence[Tensor], task: int, index: int, name: str) -> None:
    values = [estimate(float(column[place]) for column in columns) for place in range(len(columns[0]))]
    means, errors = [v.mean for v in values if v], [v.std or 0.0 for v in values if v]
    panel.errorbar(range(task + 1, task + 1 + len(values)), means, errors, label=name, capsize=3, **series(index))


def _finish(figure: Figure, axes: Sequence[Axes], vertical: str, horizontal: str) -> None:
    """Labels at the left and below, and a legend in a line of its own above."""
    height = figure.get_figheight()
    figure.set_figheight(height + 0.7)
    share, below = height / (height + 0.7), 0.3 / (height + 0.7)
    margins = figure.subplotpars
    figure.subplots_adjust(top=margins.top * share + below, bottom=margins.bottom * share + below)
    for panel in axes[::COLUMNS]:
        panel.set_ylabel(vertical)
    for panel in axes[-COLUMNS:]:
        panel.set_xlabel(horizontal)
        panel.tick_params(labelbottom=True)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper left", ncols=len(labels))


def _point(
    known: Mapping[Group, Sequence[MeasuredRun]], bed: tuple[str, str, str, int], options: str
) -> tuple[Estimate, Estimate] | None:
    members = known.get(Group(*bed, "er", "ddn", options), [])
    acc, fm = (estimate(run.value(measure, "running") for run in members) for measure in MEASURES)
    return None if acc is None or fm is None else (acc, fm)


FIGURES: Mapping[str, Callable[[Runs], Figure]] = {
    "probability": probability_figure,
    "confusion": confusion_figure,
    "task_accuracy": task_accuracy_figure,
}

if __name__ == "__main__":
    main()
