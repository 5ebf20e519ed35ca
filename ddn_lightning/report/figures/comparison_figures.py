"""Figures that compare runs."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ddn_lightning.report.figures.accuracy import alpha_beta_figure, task_accuracy_figure
from ddn_lightning.report.figures.memory import entropy_figure
from ddn_lightning.report.figures.predictions import normalised
from ddn_lightning.report.figures.run_figures import Picture, confusion_picture, entropy_curve, probability_picture
from ddn_lightning.report.figures.style import DASHES, tasks_left_out
from ddn_lightning.report.run_labels import method_title, named_groups, run_labels
from ddn_lightning.report.seed_group import by_seed, one_per_seed
from ddn_lightning.report.statistic import Estimate, estimate
from ddn_lightning.runs.recorded_run import RecordedRun, curves_of

MOST_LINES = 10  # readers cannot distinguish more
MOST_SIDE_BY_SIDE = 3
FEW_CLASSES = 10
ALPHA, BETA = (f"model.init_args.distiller.init_args.{name}" for name in ("alpha", "beta"))
Points = dict[float, tuple[Estimate, Estimate]]  # ACC and FM by the value of a weight


def comparison_pictures(runs: Sequence[RecordedRun]) -> list[Picture]:
    """The figures that compare finished runs on the same data; none for a single run."""
    by_data = _by_data(runs)
    return [
        replace(picture, title=f"{picture.title} ({data[0]})") if len(by_data) > 1 else picture
        for data, same in by_data.items()
        if len(same) > 1
        for draw in (_accuracy, _entropy, _alpha_beta, _predictions)
        for picture in draw(same)
    ]


def not_compared(runs: Sequence[RecordedRun]) -> list[str]:
    """The names of the runs that no figure compares, because no other run has the same data."""
    return [same[0].name for same in _by_data(runs).values() if len(same) == 1 < len(runs)]


def _by_data(runs: Sequence[RecordedRun]) -> dict[tuple[object, ...], list[RecordedRun]]:
    by_data: dict[tuple[object, ...], list[RecordedRun]] = {}
    for run in runs:
        if run.results is not None:
            data = (run.results.dataset, run.results.class_names, len(run.results.matrix))
            by_data.setdefault(data, []).append(run)
    return by_data


def _accuracy(runs: Sequence[RecordedRun]) -> list[Picture]:
    """A line per run, those of one group in one colour; of more than can be distinguished, a line per group."""
    groups = named_groups(runs)
    distinct = {name: one_per_seed(group) for name, group in groups.items()}
    has_few = len(runs) <= MOST_LINES and all(len(group) <= len(DASHES) for group in groups.values())
    if has_few or len(groups) == 1:
        labels = run_labels(runs)
        shown = [run for group in groups.values() for run in group][:MOST_LINES]
        curves = {labels[run.name]: run.task_curves for run in shown}
        figure = task_accuracy_figure(curves, _group_numbers(shown, groups))
        what, left_out = "", _left_out(len(shown), len(runs))
    else:
        means = {f"{name} ({len(group)})": _mean_matrix(group) for name, group in distinct.items()}
        chosen = dict(list(means.items())[:MOST_LINES])
        figure = task_accuracy_figure({name: curves_of(matrix) for name, matrix in chosen.items()})
        what, left_out = ", mean of each group (number of runs)", _left_out(len(chosen), len(means), "groups")
    title = f"Accuracy of each task over training{what}{left_out}{tasks_left_out(len(_matrix(runs[0])))}"
    finals = ", ".join(
        f"{name} {estimate(run.results.acc for run in group if run.results)}" for name, group in distinct.items()
    )
    caption = f"{title}{_class_orders(runs)}"
    return [Picture("task_accuracy", caption, figure, f"{title}. ACC at the end, mean (number of runs): {finals}.")]


def _matrix(run: RecordedRun) -> Tensor:
    assert run.results is not None
    return run.results.matrix


def _mean_matrix(runs: Sequence[RecordedRun]) -> Tensor:
    return torch.stack([_matrix(run) for run in runs]).mean(dim=0)


def _group_numbers(runs: Sequence[RecordedRun], groups: Mapping[str, Sequence[RecordedRun]]) -> list[int]:
    numbers = {run.name: number for number, members in enumerate(groups.values()) for run in members}
    return [numbers[run.name] for run in runs]


def _class_orders(runs: Sequence[RecordedRun]) -> str:
    """A warning, if a task does not have the same classes in all runs."""
    orders = [run.observed.is_class_of_task for run in runs if run.observed is not None]
    is_same = all(order.equal(orders[0]) for order in orders)
    return "" if is_same else "; the class order differs, so a task has other classes in other runs"


def _left_out(shown: int, total: int, of: str = "runs") -> str:
    """The end of a title whose figure does not show all runs.

    >>> _left_out(10, 200), _left_out(3, 3)
    (', 10 of 200 runs', '')
    """
    return f", {shown} of {total} {of}" if shown < total else ""


def _predictions(runs: Sequence[RecordedRun]) -> list[Picture]:
    labels, chosen = run_labels(runs), _side_by_side(runs)
    observed = {labels[run.name]: run.observed for run in chosen if run.observed is not None}
    confusions = {label: one.confusion for label, one in observed.items() if one.confusion is not None}
    means = {label: one.probability for label, one in observed.items() if one.probability is not None}
    if len(confusions) < 2 or len({len(table) for table in (*confusions.values(), *means.values())}) > 1:
        return []
    names = None if chosen[0].results is None else chosen[0].results.class_names
    recalls = {label: 100 * float(normalised(table).diagonal().nanmean()) for label, table in confusions.items()}
    description = f"Normalised confusion matrices. Recognised on average: {_percentages(recalls)}."
    pictures = [confusion_picture(observed, names, description)]
    if means:
        true_class = {label: 100 * float(table.diagonal().nanmean()) for label, table in means.items()}
        description = f"Mean predicted probabilities. Of the true class itself: {_percentages(true_class)}."
        pictures.append(probability_picture(observed, names, description, FEW_CLASSES))
    left_out = _left_out(len(observed), len(runs))
    which = f"{left_out}: {'; '.join(observed)}" if left_out else ""
    return [replace(picture, title=f"{picture.title}{which}") for picture in pictures]


def _percentages(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.1f} %" for name, value in values.items())


def _side_by_side(runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """The first run with observations of each method and plug-in; if all have the same, the first two."""
    first: dict[str, RecordedRun] = {}
    known = [run for run in runs if run.observed is not None]
    for run in known:
        if run.results is not None:
            first.setdefault(method_title(run.results), run)
    return list(first.values())[:MOST_SIDE_BY_SIDE] if len(first) > 1 else known[:2]


def _entropy(runs: Sequence[RecordedRun]) -> list[Picture]:
    labels, groups = run_labels(runs), named_groups(runs)
    found = [(run, curve) for run in runs if (curve := entropy_curve(run)).values]
    sizes = {run.observed.num_classes for run, _ in found if run.observed is not None}
    if len(found) < 2 or len(sizes) != 1:
        return []
    shown = found[:MOST_LINES]
    curves = {labels[run.name]: curve for run, curve in shown}
    finals = ", ".join(f"{label} {curve.values[-1]:.2f} nats" for label, curve in curves.items())
    figure = entropy_figure(curves, sizes.pop(), _group_numbers([run for run, _ in shown], groups))
    caption = f"Entropy of the soft labels{_left_out(len(shown), len(found), 'runs that have any')}"
    return [Picture("label_entropy", caption, figure, f"At the end: {finals}.")]


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
    by_value: dict[float, list[RecordedRun]] = {}
    for run in runs:
        if run.config[fixed] == most_frequent:
            by_value.setdefault(float(run.config[varied]), []).append(run)
    points: Points = {}
    for value, same in sorted(by_value.items()):
        results = [run.results for run in one_per_seed(same) if run.results is not None]
        acc, fm = estimate(result.acc for result in results), estimate(result.fm for result in results)
        if acc is not None and fm is not None:
            points[value] = (acc, fm)
    return points if len(points) > 1 else {}
