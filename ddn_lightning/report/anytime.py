"""Continual evaluation on the report page: a table and figures of runs that differ in their seed only."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ddn_lightning.metrics.anytime import accuracy_curve, forgetting_curve, plasticity_curve
from ddn_lightning.report.figures.anytime import Band, anytime_figure, anytime_tasks_figure
from ddn_lightning.report.figures.run_figures import Picture
from ddn_lightning.report.figures.style import tasks_left_out
from ddn_lightning.report.page_tables import Column, PageTable, TableCell
from ddn_lightning.report.seed_group import SeedGroup, by_seed, names_of
from ddn_lightning.report.statistic import Estimate, estimate
from ddn_lightning.runs.anytime import AnytimeRecord
from ddn_lightning.runs.recorded_run import RecordedRun
from ddn_lightning.runs.results import Results

MOST_GROUPS = 10  # lines in a figure; readers cannot distinguish more
MEASURES = {
    "AAA over steps": "average_accuracy_over_steps",
    "min-ACC": "minimum_accuracy",
    "WC-ACC": "worst_case_accuracy",
    "Mean gap": "average_stability_gap",
    "Worst gap": "worst_stability_gap",
    "WF": "windowed_forgetting",
    "WP": "windowed_plasticity",
    "FWT": "forward_transfer",
}
EXPLANATION = (
    "Measured every few steps on a fixed, class-balanced subset of the images. AAA over steps: mean accuracy on the "
    "tasks seen, over all evaluations. min-ACC: mean of each earlier task's lowest accuracy since it was learned. "
    "WC-ACC: the same with the last task's final accuracy. Gap: how far an earlier task falls after a task switch, on "
    "average and at worst. WF, WP: largest drop and rise of a task within 10 evaluations. FWT: accuracy on a task "
    "before it is trained, above the untrained network's. Cost: share of the run's time."
)


@dataclass(frozen=True, eq=False)
class AnytimeGroup:
    """Runs that differ in their seed only, measured at the same steps on the same images."""

    name: str
    runs: Sequence[RecordedRun]

    @property
    def records(self) -> list[AnytimeRecord]:
        """The evaluations of each run."""
        return [run.anytime for run in self.runs if run.anytime is not None]

    @property
    def results(self) -> list[Results]:
        """The results of each run."""
        return [run.results for run in self.runs if run.results is not None]

    @property
    def curves(self) -> list[Band]:
        """Accuracy, forgetting and plasticity over steps."""
        steps, tasks = self.records[0].steps, self.records[0].tasks
        found = (accuracy_curve, forgetting_curve, plasticity_curve)
        return [Band.of(steps, torch.stack([curve(r.accuracies, tasks) for r in self.records])) for curve in found]

    @property
    def tasks(self) -> list[Band]:
        """Accuracy of each task over steps."""
        accuracies = self._accuracies
        return [Band.of(self.records[0].steps, accuracies[:, :, task]) for task in range(accuracies.shape[2])]

    @property
    def _accuracies(self) -> Tensor:
        return torch.stack([record.accuracies for record in self.records])  # (seeds, evaluations, tasks)


def anytime_groups(runs: Sequence[RecordedRun]) -> list[AnytimeGroup]:
    """The finished runs with a continual evaluation, grouped."""
    measured = [run for run in runs if run.is_finished and run.anytime is not None]
    same: dict[tuple[object, ...], dict[int, RecordedRun]] = {}
    for number, members in enumerate(by_seed(measured)):
        for run in members:
            assert run.results is not None
            same.setdefault((number, *_measured_as(run)), {}).setdefault(run.results.seed, run)  # a seed counts once
    names = names_of([SeedGroup(found) for found in same.values()])
    return [AnytimeGroup(name, list(group.runs.values())) for group, name in names.items()]


def _measured_as(run: RecordedRun) -> tuple[object, ...]:
    """What must be equal for a mean over runs: the images, the statistics, the steps and the tasks."""
    assert run.anytime is not None
    assert run.results is not None
    images = tuple(run.results.anytime.get(name) for name in ("images", "seed"))
    return (*images, run.config.get("anytime.statistics"), *run.anytime.steps.tolist(), *run.anytime.tasks.tolist())


def anytime_table(groups: Sequence[AnytimeGroup]) -> PageTable:
    """One row per group; measures as mean ± standard deviation over seeds."""
    found = {group: _estimates(group) for group in groups}
    shown = [name for name in MEASURES.values() if any(row[name] is not None for row in found.values())]
    titles = [title for title, name in MEASURES.items() if name in shown]
    columns = [Column("Group"), *(Column(title, True) for title in titles), Column("Evaluations"), Column("Cost", True)]
    rows = []
    for group, estimates in found.items():
        facts = group.results[0].anytime
        number = f"{len(group.records[0].evaluations)} of {facts.get('images', 0):.0f} images"
        cost = estimate(_cost(results) for results in group.results)
        row = [TableCell(group.name, group.name), *(_cell(estimates[name]) for name in shown)]
        row += [
            TableCell(number, number),
            TableCell() if cost is None else TableCell(f"{cost.mean:.1f} %", str(cost.mean)),
        ]
        rows.append(row)
    return PageTable(columns, rows)


def _estimates(group: AnytimeGroup) -> dict[str, Estimate | None]:
    return {name: estimate(results.anytime.get(name) for results in group.results) for name in MEASURES.values()}


def _cost(results: Results) -> float | None:
    """Seconds of evaluation as a percentage of the run's."""
    spent = results.anytime.get("seconds")
    return None if spent is None or not results.seconds else 100 * spent / results.seconds


def _cell(value: Estimate | None) -> TableCell:
    return TableCell() if value is None else TableCell(str(value), str(value.mean))


def anytime_pictures(groups: Sequence[AnytimeGroup]) -> list[Picture]:
    """Curves of all groups on the same data; and of each task, for groups of several seeds."""
    pictures = []
    for title, members in _by_data(groups).items():
        shown = members[:MOST_GROUPS]
        switches = {tuple(group.records[0].switches) for group in shown}
        figure = anytime_figure({g.name: g.curves for g in shown}, switches.pop() if len(switches) == 1 else ())
        left_out = f", {len(shown)} of {len(members)} groups" if len(shown) < len(members) else ""
        finals = ", ".join(f"{group.name} {float(group.curves[0].mean[-1]):.1f} %" for group in shown)
        description = f"Mean over seeds, with a band of one standard deviation. Accuracy at the end: {finals}."
        pictures.append(Picture("anytime", f"{title}: what happens within tasks{left_out}", figure, description))
        for group in (group for group in shown if len(group.runs) > 1):
            lowest = ", ".join(
                f"task {n + 1} {float(b.mean.nan_to_num(101).min()):.1f} %" for n, b in enumerate(group.tasks)
            )
            figure = anytime_tasks_figure(group.tasks, group.records[0].switches)
            caption = f"{group.name}: each task over steps ({len(group.runs)} seeds){tasks_left_out(len(group.tasks))}"
            pictures.append(Picture("anytime_tasks", caption, figure, f"Lowest means: {lowest}."))
    return pictures


def _by_data(groups: Sequence[AnytimeGroup]) -> dict[str, list[AnytimeGroup]]:
    by_data: dict[str, list[AnytimeGroup]] = {}
    for group in groups:
        results = group.results[0]
        by_data.setdefault(f"{results.dataset}, {len(results.matrix)} tasks", []).append(group)
    return by_data
