"""Figures that compare runs."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ddn_lightning.report.figures.accuracy import Cost, alpha_beta_figure, cost_figure, task_accuracy_figure
from ddn_lightning.report.figures.memory import entropy_figure
from ddn_lightning.report.figures.predictions import confusion_figure, probability_figure, probability_map
from ddn_lightning.report.figures.run_figures import Picture, entropy_curve
from ddn_lightning.report.seed_group import by_seed
from ddn_lightning.report.statistic import Estimate, estimate
from ddn_lightning.runs.recorded_run import RecordedRun
from ddn_lightning.runs.results import Results

MOST_LINES = 10  # readers cannot distinguish more
MOST_SIDE_BY_SIDE = 3
FEW_CLASSES = 10
ALPHA, BETA = (f"model.init_args.distiller.init_args.{name}" for name in ("alpha", "beta"))
Points = dict[float, tuple[Estimate, Estimate]]  # ACC and FM by the value of a weight


def comparison_pictures(runs: Sequence[RecordedRun]) -> list[Picture]:
    """The figures that compare finished runs on the same data; none for a single run."""
    by_data: dict[tuple[object, ...], list[RecordedRun]] = {}
    for run in runs:
        if run.results is not None:
            data = (run.results.dataset, run.results.class_names, len(run.results.matrix))
            by_data.setdefault(data, []).append(run)
    return [
        replace(picture, title=f"{picture.title} ({data[0]})") if len(by_data) > 1 else picture
        for data, same in by_data.items()
        if len(same) > 1
        for draw in (_accuracy, _cost, _predictions, _entropy, _alpha_beta)
        for picture in draw(same)
    ]


def _accuracy(runs: Sequence[RecordedRun]) -> list[Picture]:
    shown = runs[:MOST_LINES]
    figure = task_accuracy_figure({run.name: run.task_curves for run in shown})
    finals = ", ".join(f"{run.name} {run.results.acc:.1f} %" for run in shown if run.results and run.results.acc)
    title = f"Accuracy of each task over training{_left_out(len(shown), len(runs))}"
    return [Picture("task_accuracy", title, figure, f"{title}, by run. At the end, on average: {finals}.")]


def _left_out(shown: int, total: int) -> str:
    """The end of a title whose figure does not show all runs.

    >>> _left_out(10, 200), _left_out(3, 3)
    (', 10 of 200 runs', '')
    """
    return f", {shown} of {total} runs" if shown < total else ""


def _cost(runs: Sequence[RecordedRun]) -> list[Picture]:
    costs = {
        str(run.folder): Cost(results.seconds, results.acc, results.title)
        for run in runs
        if (results := run.results) and results.seconds is not None and results.acc is not None
    }
    if len(costs) < 2:
        return []
    groups: dict[str, list[Cost]] = {}
    for cost in costs.values():
        groups.setdefault(cost.group, []).append(cost)
    means = [
        f"{name}: ACC {estimate(one.accuracy for one in members)} in {estimate(one.seconds for one in members)} s"
        for name, members in groups.items()
    ]
    description = f"Mean ± standard deviation (number of runs). {'; '.join(means)}."
    return [Picture("cost", "Accuracy against training time", cost_figure(costs), description)]


def _predictions(runs: Sequence[RecordedRun]) -> list[Picture]:
    candidates = [run for run in runs if run.observed is not None]
    chosen = _side_by_side(candidates)
    observed = {run.name: run.observed.tensors() for run in chosen if run.observed is not None}
    confusions = {name: tensors["confusion"] for name, tensors in observed.items() if "confusion" in tensors}
    means = {name: tensors["probability"] for name, tensors in observed.items() if "probability" in tensors}
    if len(confusions) < 2 or len({len(table) for table in (*confusions.values(), *means.values())}) > 1:
        return []
    names = None if chosen[0].results is None else chosen[0].results.class_names
    recalls = {name: 100 * float((t.diagonal() / t.sum(dim=1)).nanmean()) for name, t in confusions.items()}
    true_class = {name: 100 * float(t.diagonal().nanmean()) for name, t in means.items()}
    draw = probability_figure if len(next(iter(means.values()))) <= FEW_CLASSES else probability_map
    left_out = _left_out(len(chosen), len(candidates))
    return [
        Picture(
            "confusion",
            f"Which class is taken for which{left_out}",
            confusion_figure(confusions, names),
            f"Normalised confusion matrices. Recognised on average: {_percentages(recalls)}.",
        ),
        Picture(
            "probability",
            f"Mean predicted probabilities of each true class{left_out}",
            draw(means, names),
            f"Mean predicted probabilities by true class. Of the true class itself: {_percentages(true_class)}.",
        ),
    ]


def _percentages(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.1f} %" for name, value in values.items())


def _side_by_side(runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """The first run of each method and plug-in; if all have the same, the first two runs."""
    first: dict[str, RecordedRun] = {}
    for run in runs:
        if run.results is not None:
            first.setdefault(run.results.title, run)
    return list(first.values())[:MOST_SIDE_BY_SIDE] if len(first) > 1 else list(runs[:2])


def _entropy(runs: Sequence[RecordedRun]) -> list[Picture]:
    curves = {run.name: curve for run in runs if (curve := entropy_curve(run)).values}
    sizes = {run.observed.num_classes for run in runs if run.observed is not None and run.name in curves}
    if len(curves) < 2 or len(sizes) != 1:
        return []
    shown = dict(list(curves.items())[:MOST_LINES])
    finals = ", ".join(f"{name} {curve.values[-1]:.2f} nats" for name, curve in shown.items())
    title = f"Entropy of the soft labels{_left_out(len(shown), len(curves))}"
    return [Picture("label_entropy", title, entropy_figure(shown, sizes.pop()), f"At the end: {finals}.")]


def _alpha_beta(runs: Sequence[RecordedRun]) -> list[Picture]:
    points = alpha_beta_points(runs)
    if points is None:
        return []
    listed = "; ".join(
        f"{name} {value:g}: ACC {acc.mean:.1f}, FM {fm.mean:.1f}"
        for name, by_value in zip(("alpha", "beta"), points, strict=True)
        for value, (acc, fm) in by_value.items()
    )
    return [Picture("alpha_beta", "Effect of DDN's weights", alpha_beta_figure(*points), f"{listed}.")]


def alpha_beta_points(runs: Iterable[RecordedRun]) -> tuple[Points, Points] | None:
    """ACC and FM by alpha and by beta, with the other weight at its most frequent value; empty where it is constant."""
    with_weights = [run for run in runs if all(isinstance(run.config.get(key), int | float) for key in (ALPHA, BETA))]
    largest = max(by_seed(with_weights, ignored=(ALPHA, BETA)), key=len, default=[])
    alphas, betas = (_points(largest, varied, fixed) for varied, fixed in ((ALPHA, BETA), (BETA, ALPHA)))
    return (alphas, betas) if alphas or betas else None


def _points(runs: Sequence[RecordedRun], varied: str, fixed: str) -> Points:
    counts = Counter(float(run.config[fixed]) for run in runs)
    most_frequent = max(counts, key=counts.__getitem__, default=0.0)
    by_value: dict[float, list[Results]] = {}
    for run in runs:
        if run.config[fixed] == most_frequent and run.results is not None:
            by_value.setdefault(float(run.config[varied]), []).append(run.results)
    points: Points = {}
    for value, results in sorted(by_value.items()):
        acc, fm = estimate(result.acc for result in results), estimate(result.fm for result in results)
        if acc is not None and fm is not None:
            points[value] = (acc, fm)
    return points if len(points) > 1 else {}
