"""Figures that compare runs."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from ddn_lightning.report.figures.accuracy import Cost, alpha_beta_figure, cost_figure, task_accuracy_figure
from ddn_lightning.report.figures.memory import entropy_figure
from ddn_lightning.report.figures.predictions import confusion_figure, probability_figure, probability_map
from ddn_lightning.report.figures.run_figures import Picture, entropy_curve
from ddn_lightning.report.groups import alpha_beta_points
from ddn_lightning.runs.recorded_run import RecordedRun

MOST_LINES = 10  # more cannot be told apart
MOST_SIDE_BY_SIDE = 3
FEW_CLASSES = 10


def comparing_pictures(runs: Sequence[RecordedRun]) -> list[Picture]:
    """The figures that finished runs on the same data can be compared by; none for a single one."""
    by_data: dict[tuple[object, ...], list[RecordedRun]] = {}
    for run in runs:
        if run.results is not None:
            data = (run.results.dataset, run.results.class_names, len(run.results.matrix))
            by_data.setdefault(data, []).append(run)
    pictures = [(data[0], picture) for data, same in by_data.items() for picture in _of_same_data(same)]
    return [p if len(by_data) == 1 else replace(p, title=f"{p.title} ({data})") for data, p in pictures]


def _of_same_data(runs: Sequence[RecordedRun]) -> list[Picture]:
    if len(runs) < 2:
        return []
    return [*_accuracy(runs), *_cost(runs), *_predictions(runs), *_entropy(runs), *_alpha_beta(runs)]


def _accuracy(runs: Sequence[RecordedRun]) -> list[Picture]:
    shown = runs[:MOST_LINES]
    figure = task_accuracy_figure({run.name: run.task_curves for run in shown})
    gist = ", ".join(f"{run.name} {run.results.acc:.1f} %" for run in shown if run.results and run.results.acc)
    title = f"Accuracy of each task over training{_left_out(len(shown), len(runs))}"
    return [Picture("task_accuracy", title, figure, f"{title}, by run. At the end, on average: {gist}.")]


def _left_out(shown: int, there: int) -> str:
    """What to say of a figure that does not show all runs.

    >>> _left_out(10, 200), _left_out(3, 3)
    (', 10 of 200 runs', '')
    """
    return f", {shown} of {there} runs" if shown < there else ""


def _cost(runs: Sequence[RecordedRun]) -> list[Picture]:
    costs = {
        str(run.folder): Cost(results.seconds, results.acc, results.title)
        for run in runs
        if (results := run.results) and results.seconds is not None and results.acc is not None
    }
    if len(costs) < 2:
        return []
    best = max(costs.values(), key=lambda cost: cost.accuracy)
    fastest = min(costs.values(), key=lambda cost: cost.seconds)
    gist = (
        f"Best: {best.group}, {best.accuracy:.1f} % in {best.seconds:.0f} s. "
        f"Fastest: {fastest.group}, {fastest.accuracy:.1f} % in {fastest.seconds:.0f} s."
    )
    return [Picture("cost", "Accuracy against training time", cost_figure(costs), gist)]


def _predictions(runs: Sequence[RecordedRun]) -> list[Picture]:
    candidates = [run for run in runs if run.observed is not None]
    chosen = _side_by_side(candidates)
    confusions = {run.name: found for run in chosen if (found := _table(run, "confusion")) is not None}
    means = {run.name: found for run in chosen if (found := _table(run, "probability")) is not None}
    if len(confusions) < 2 or len({len(table) for table in (*confusions.values(), *means.values())}) > 1:
        return []
    names = None if chosen[0].results is None else chosen[0].results.class_names
    hits = {name: 100 * float((t.diagonal() / t.sum(dim=1)).nanmean()) for name, t in confusions.items()}
    gist = ", ".join(f"{name} {value:.1f} %" for name, value in hits.items())
    is_few = len(next(iter(means.values()))) <= FEW_CLASSES
    draw = probability_figure if is_few else probability_map
    left_out = _left_out(len(chosen), len(candidates))
    return [
        Picture(
            "confusion",
            f"Which class is taken for which{left_out}",
            confusion_figure(confusions, names),
            f"Normalised confusion matrices. Recognised on average: {gist}.",
        ),
        Picture(
            "probability",
            f"Mean predicted probabilities of each true class{left_out}",
            draw(means, names),
            "Mean predicted probabilities by true class. Of the true class itself: "
            + ", ".join(f"{name} {100 * float(t.diagonal().nanmean()):.1f} %" for name, t in means.items())
            + ".",
        ),
    ]


def _side_by_side(runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """The first run of each method with its plug-in; of a single one, its first runs."""
    first: dict[str, RecordedRun] = {}
    for run in runs:
        if run.results is not None:
            first.setdefault(run.results.title, run)
    return list(first.values())[:MOST_SIDE_BY_SIDE] if len(first) > 1 else list(runs[:2])


def _table(run: RecordedRun, name: str) -> Tensor | None:
    return None if run.observed is None else run.observed.tensors().get(name)


def _entropy(runs: Sequence[RecordedRun]) -> list[Picture]:
    curves = {run.name: curve for run in runs if (curve := entropy_curve(run)).values}
    sizes = {run.observed.num_classes for run in runs if run.observed is not None and run.name in curves}
    if len(curves) < 2 or len(sizes) != 1:
        return []
    shown = dict(list(curves.items())[:MOST_LINES])
    gist = ", ".join(f"{name} {curve.values[-1]:.2f} nats" for name, curve in shown.items())
    title = f"Entropy of the soft labels{_left_out(len(shown), len(curves))}"
    return [Picture("label_entropy", title, entropy_figure(shown, sizes.pop()), f"At the end: {gist}.")]


def _alpha_beta(runs: Sequence[RecordedRun]) -> list[Picture]:
    points = alpha_beta_points(runs)
    if points is None:
        return []
    gist = "; ".join(
        f"{name} {value:g}: ACC {acc.mean:.1f}, FM {fm.mean:.1f}"
        for name, by_value in zip(("alpha", "beta"), points, strict=True)
        for value, (acc, fm) in by_value.items()
    )
    return [Picture("alpha_beta", "Effect of DDN's weights", alpha_beta_figure(*points), f"{gist}.")]
