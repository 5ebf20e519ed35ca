"""Groups of runs compared with a baseline on the same seeds, as rows and as Markdown, CSV or LaTeX."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ddn_lightning.report.power import POWER, SeedsNeeded, seeds_needed
from ddn_lightning.report.seed_group import STATISTICS, Budget, SeedGroup, Statistics, baselines_of, by_seed, names_of
from ddn_lightning.report.statistic import Estimate, estimate, paired_difference, paired_ratio
from ddn_lightning.report.tables import NOTHING, as_ranges, csv_table, in_markdown, latex_table, markdown_table, rounded
from ddn_lightning.runs.recorded_run import RecordedRun

HEADER = (
    *("group", "n", "seeds", "ACC ↑", "FM ↓", "task-IL ACC ↑", "against", "Δ ACC", "seeds needed", "Δ FM"),
    *("CPU min", "cost"),
)
ALIGNMENT = "lrllllllllll"  # in LaTeX
WORTH_FINDING = 1.0  # difference in ACC, in points
ONE_SEED = "one seed: no interval"
ESTIMATES = ("acc", "fm", "task_il_acc", "acc_difference", "fm_difference", "cpu_minutes", "cost")


@dataclass(frozen=True)
class ComparedRow:
    """One group, evaluated with one kind of BatchNorm statistics.

    Args:
        group: Name of the group.
        test_bed: Number of its test bed; only groups with the same number are comparable.
        statistics: BatchNorm statistics of the evaluation.
        seeds: Its seeds.
        acc: Average accuracy in percent.
        fm: Forgetting in percent.
        against: Title of the row it is compared with, if any.
        acc_difference: ``acc`` minus that of the row ``against``, paired by seed.
        fm_difference: ``fm`` minus that of the row ``against``, paired by seed.
        cpu_minutes: Processor time.
        baseline: Name of the group that ``cost`` is relative to.
        cost: Processor time divided by the baseline's, paired by seed.
        measures: The images of ``acc`` and ``fm``, if a validation split was held out.
        task_il_acc: Average accuracy in percent among the classes of each sample's task.
        seeds_needed: Seeds with which ``acc_difference`` would be found; ``None`` without one, or with a single seed.
        choosing_seeds: Those of its seeds by which its settings were chosen.
    """

    group: str
    test_bed: int
    statistics: Statistics
    seeds: tuple[int, ...]
    acc: Estimate
    fm: Estimate | None
    against: str | None
    acc_difference: Estimate | None
    fm_difference: Estimate | None
    cpu_minutes: Estimate | None
    baseline: str | None
    cost: Estimate | None
    measures: str = ""
    task_il_acc: Estimate | None = None
    seeds_needed: SeedsNeeded | None = None
    choosing_seeds: tuple[int, ...] = ()

    @property
    def title(self) -> str:
        """Name of the group with its statistics."""
        return _title(self.group, self.statistics)


@dataclass(frozen=True)
class GroupComparison:
    """Groups of runs side by side.

    Args:
        rows: The rows; each baseline comes before the groups compared with it.
        left_out: Runs that are in no row, each with the reason.
        difference: Difference in ACC worth finding, in points.
    """

    rows: Sequence[ComparedRow]
    left_out: Sequence[str] = ()
    difference: float = WORTH_FINDING

    @property
    def has_pairs(self) -> bool:
        """Whether any two groups share a seed."""
        return any(row.acc_difference is not None and row.against != row.group for row in self.rows)

    @property
    def warnings(self) -> list[str]:
        """A sentence about each group that is reported on seeds by which its settings were chosen."""
        chosen = {row.group: row.choosing_seeds for row in self.rows if row.choosing_seeds}
        return [
            f"{group}: {'seed' if len(seeds) == 1 else 'seeds'} {as_ranges(seeds)} chose the settings of this group: "
            "what they give is optimistic"
            for group, seeds in chosen.items()
        ]

    @property
    def explanation(self) -> str:
        """What the columns mean, and the images of the rows with a validation split."""
        columns = (
            "Rows are in the order given, each baseline first. ACC and FM in percent: mean ± standard deviation; "
            "task-IL: among the classes of each sample's task. Δ: difference to the row in column 'against', paired by "
            "seed: mean [95 % confidence interval by Student's t] (seeds in common). 'difference' only where the "
            "interval excludes 0 with at least 3 seeds; intervals are not corrected for multiple comparisons. Seeds "
            "needed: with that many, the paired t-test at level 0.05 finds a true Δ ACC of the observed size / of "
            f"{self.difference:g} {'point' if self.difference == 1 else 'points'} with probability {POWER:g}, if it "
            "varies as much as here: a rough guess from few seeds. Cost: processor time divided by the baseline's on "
            "the same seeds, evaluation included."
        )
        return " ".join([columns, *(f"{row.title}: {row.measures}." for row in self.rows if row.measures)])


def compare_groups(
    runs: Sequence[RecordedRun],
    baseline: str | None = None,
    statistics: Sequence[Statistics] = STATISTICS,
    difference: float = WORTH_FINDING,
    budget: Budget = "samples",
) -> GroupComparison:
    """Compare groups of runs with a baseline on the same data, network and memory.

    Args:
        runs: The runs.
        baseline: Name of the baseline; by default each method is compared with its plain form.
        statistics: BatchNorm statistics to show, where they were evaluated.
        difference: Difference in ACC worth finding, in points.
        budget: The unit in which comparable groups have equal memories.

    Raises:
        ConfigurationError: If no group has the baseline's name.
    """
    groups, left_out = _seed_groups(runs, budget)
    baselines = baselines_of(groups, baseline)
    names = names_of(groups)
    order = {group: number for number, group in enumerate(groups)}
    beds = {bed: number for number, bed in enumerate(dict.fromkeys(group.test_bed for group in groups))}

    def sort_key(group: SeedGroup) -> tuple[int, int, bool, int]:
        known = baselines[group] or group
        return beds[group.test_bed], order[known], known is not group, order[group]

    rows = [
        _row(group, baselines[group], kind, "running" in statistics, names, beds[group.test_bed])
        for group in sorted(groups, key=sort_key)
        for kind in statistics
    ]
    known = [_with_seeds_needed(row, difference) for row in rows if row is not None]
    return GroupComparison(known, left_out, difference)


def _seed_groups(runs: Sequence[RecordedRun], budget: Budget) -> tuple[list[SeedGroup], list[str]]:
    """The groups of finished runs, and why the other runs are in none."""
    left_out = [f"{run.name}: {'; '.join(run.problems) or 'not finished'}" for run in runs if not run.is_finished]
    groups = []
    for members in by_seed([run for run in runs if run.is_finished]):
        runs_by_seed: dict[int, RecordedRun] = {}
        for run in members:
            assert run.results is not None
            known = runs_by_seed.setdefault(run.results.seed, run)
            if known is not run:
                left_out.append(f"{run.name}: repeats seed {run.results.seed} of {known.name}")
        groups.append(SeedGroup(runs_by_seed, budget))
    return groups, left_out


def _row(
    group: SeedGroup,
    baseline: SeedGroup | None,
    kind: Statistics,
    has_running: bool,
    names: Mapping[SeedGroup, str],
    bed: int,
) -> ComparedRow | None:
    """One row, or ``None`` if the group was not evaluated with these statistics."""
    acc, fm = group.values("acc", kind), group.values("fm", kind)
    mean_acc = estimate(acc.values())
    if mean_acc is None:
        return None
    is_baseline = baseline is group
    # a baseline with calibrated statistics is compared with itself with running ones
    reference: Statistics = "running" if is_baseline else kind
    acc_difference = fm_difference = None
    if baseline is not None and (not is_baseline or (kind == "calibrated" and has_running)):
        acc_difference = paired_difference(acc, baseline.values("acc", reference))
        fm_difference = paired_difference(fm, baseline.values("fm", reference))
    return ComparedRow(
        group=names[group],
        test_bed=bed,
        statistics=kind,
        seeds=tuple(sorted(seed for seed, value in acc.items() if value is not None)),
        acc=mean_acc,
        fm=estimate(fm.values()),
        against=None if baseline is None or acc_difference is None else _title(names[baseline], reference),
        acc_difference=acc_difference,
        fm_difference=fm_difference,
        cpu_minutes=estimate(group.cpu_minutes.values()),
        baseline=None if baseline is None else names[baseline],
        cost=None if baseline is None else paired_ratio(group.cpu_minutes, baseline.cpu_minutes),
        measures=group.results.measures,
        task_il_acc=estimate(group.values("task_il_acc", kind).values()),
        choosing_seeds=group.choosing_seeds,
    )


def _with_seeds_needed(row: ComparedRow, difference: float) -> ComparedRow:
    found = row.acc_difference
    return row if found is None else replace(row, seeds_needed=seeds_needed(found, difference))


def _title(group: str, statistics: Statistics) -> str:
    return group if statistics == "running" else f"{group}, calibrated"


def as_markdown(comparison: GroupComparison) -> str:
    """A table to read, with an explanation, warnings and the runs left out."""
    text = f"{markdown_table(HEADER, [cells(row) for row in comparison.rows])}\n{comparison.explanation}\n"
    for title, lines in (("Warning", comparison.warnings), ("Left out", comparison.left_out)):
        if lines:
            text += f"\n{title}:\n\n" + "".join(f"- {in_markdown(line)}\n" for line in lines)
    return text


def as_latex(comparison: GroupComparison) -> str:
    """A table for a paper, for the package booktabs; explanation, warnings and runs left out are comments."""
    comments = [comparison.explanation, *(f"Warning: {line}" for line in comparison.warnings)]
    comments += [f"Left out: {line}" for line in comparison.left_out]
    return latex_table(HEADER, [cells(row) for row in comparison.rows], ALIGNMENT, comments)


def as_csv(comparison: GroupComparison) -> str:
    """One line per row; empty cells where there is no number."""
    return csv_table([_record(row) for row in comparison.rows])


def cells(row: ComparedRow) -> list[str]:
    """The cells of a row, in the order of ``HEADER``."""
    measured = (row.acc, row.fm, row.task_il_acc, row.cpu_minutes)
    *measures, minutes = (NOTHING if value is None else value.mean_std for value in measured)
    acc_difference, fm_difference = (_difference(value) for value in (row.acc_difference, row.fm_difference))
    differences = [row.against or NOTHING, acc_difference, _needed(row), fm_difference]
    cost = NOTHING if row.cost is None else f"{row.cost.mean:.2f}"
    return [row.title, str(row.acc.n), as_ranges(row.seeds), *measures, *differences, minutes, cost]


def _needed(row: ComparedRow) -> str:
    if row.acc_difference is None:
        return NOTHING
    return ONE_SEED if row.seeds_needed is None else str(row.seeds_needed)


def _difference(value: Estimate | None) -> str:
    if value is None:
        return NOTHING
    has_interval = value.low is not None and value.high is not None
    interval = f" [{value.low:+.2f}, {value.high:+.2f}]" if has_interval else ""
    return f"{value.mean:+.2f}{interval} ({value.n}), {value.verdict}"


def _record(row: ComparedRow) -> dict[str, str | float | None]:
    record: dict[str, str | float | None] = {
        "group": row.group,
        "statistics": row.statistics,
        "seeds": " ".join(map(str, row.seeds)),
        "measures": row.measures,
        "choosing_seeds": " ".join(map(str, row.choosing_seeds)),
        "against": row.against,
        "seeds_needed_observed": getattr(row.seeds_needed, "observed", None),
        "seeds_needed_target": getattr(row.seeds_needed, "target", None),
    }
    for name in ESTIMATES:
        value: Estimate | None = getattr(row, name)
        for part in ("n", "mean", "std", "error", "low", "high"):
            record[f"{name}_{part}"] = rounded(getattr(value, part, None))
        if name.endswith("_difference"):
            record[f"{name}_verdict"] = None if value is None else value.verdict
    return record
