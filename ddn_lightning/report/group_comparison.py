"""Groups of runs compared with a baseline on the same seeds, as rows and as Markdown, CSV or LaTeX."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddn_lightning.report.seed_group import STATISTICS, SeedGroup, Statistics, baselines_of, by_seed, names_of
from ddn_lightning.report.statistic import Estimate, estimate, paired_difference, paired_ratio
from ddn_lightning.report.tables import NOTHING, as_ranges, csv_table, in_markdown, markdown_table, rounded
from ddn_lightning.runs.recorded_run import RecordedRun

HEADER = ("group", "n", "seeds", "ACC ↑", "FM ↓", "against", "Δ ACC", "Δ FM", "CPU min", "cost")
EXPLANATION = (
    "ACC and FM in percent: mean ± standard deviation. Δ: difference to the row in column 'against', paired by seed: "
    "mean [95 % confidence interval by Student's t] (seeds in common). 'difference' only where the interval excludes 0 "
    "with at least 3 seeds; intervals are not corrected for multiple comparisons. Cost: processor time divided by the "
    "baseline's on the same seeds, evaluation included."
)
ESTIMATES = ("acc", "fm", "acc_difference", "fm_difference", "cpu_minutes", "cost")
LATEX = {
    "\\": r"\textbackslash{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "Δ": r"$\Delta$",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "[": "{[}",  # after a line break, LaTeX would read an option
}


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
    """

    rows: Sequence[ComparedRow]
    left_out: Sequence[str] = ()

    @property
    def has_pairs(self) -> bool:
        """Whether any two groups share a seed."""
        return any(row.acc_difference is not None and row.against != row.group for row in self.rows)

    @property
    def explanation(self) -> str:
        """What the columns mean, and the images of the rows with a validation split."""
        measured = [f"{row.title}: {row.measures}." for row in self.rows if row.measures]
        return " ".join([EXPLANATION, *measured])


def compare_groups(
    runs: Sequence[RecordedRun], baseline: str | None = None, statistics: Sequence[Statistics] = STATISTICS
) -> GroupComparison:
    """Compare groups of runs with a baseline on the same data, network and memory.

    Args:
        runs: The runs.
        baseline: Name of the baseline; by default each method is compared with its plain form.
        statistics: BatchNorm statistics to show, where they were evaluated.

    Raises:
        ConfigurationError: If no group has the baseline's name.
    """
    groups, left_out = _seed_groups(runs)
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
    return GroupComparison([row for row in rows if row is not None], left_out)


def _seed_groups(runs: Sequence[RecordedRun]) -> tuple[list[SeedGroup], list[str]]:
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
        groups.append(SeedGroup(runs_by_seed))
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
    )


def _title(group: str, statistics: Statistics) -> str:
    return group if statistics == "running" else f"{group}, calibrated"


def as_markdown(comparison: GroupComparison) -> str:
    """A table to read, with an explanation and the runs left out."""
    text = f"{markdown_table(HEADER, [cells(row) for row in comparison.rows])}\n{comparison.explanation}\n"
    if comparison.left_out:
        text += "\nLeft out:\n\n" + "".join(f"- {in_markdown(line)}\n" for line in comparison.left_out)
    return text


def as_latex(comparison: GroupComparison) -> str:
    """A table for a paper, for the package booktabs; explanation and runs left out are comments."""
    lines = [" & ".join(map(_in_latex, line)) + r" \\" for line in (HEADER, *map(cells, comparison.rows))]
    comments = [comparison.explanation, *(f"Left out: {line}" for line in comparison.left_out)]
    parts = [r"% needs \usepackage{booktabs}", *(f"% {' '.join(comment.split())}" for comment in comments)]
    parts += [r"\begin{tabular}{lrlllllllr}", r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"]
    return "\n".join([*parts, r"\end{tabular}"]) + "\n"


def as_csv(comparison: GroupComparison) -> str:
    """One line per row; empty cells where there is no number."""
    return csv_table([_record(row) for row in comparison.rows])


def cells(row: ComparedRow) -> list[str]:
    """The cells of a row, in the order of ``HEADER``."""
    acc, fm, minutes = (NOTHING if value is None else value.mean_std for value in (row.acc, row.fm, row.cpu_minutes))
    differences = [_difference(value) for value in (row.acc_difference, row.fm_difference)]
    cost = NOTHING if row.cost is None else f"{row.cost.mean:.2f}"
    seeds = as_ranges(row.seeds)
    return [row.title, str(row.acc.n), seeds, acc, fm, row.against or NOTHING, *differences, minutes, cost]


def _difference(value: Estimate | None) -> str:
    if value is None:
        return NOTHING
    has_interval = value.low is not None and value.high is not None
    interval = f" [{value.low:+.2f}, {value.high:+.2f}]" if has_interval else ""
    return f"{value.mean:+.2f}{interval} ({value.n}), {value.verdict}"


def _in_latex(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in " ".join(text.split()))


def _record(row: ComparedRow) -> dict[str, str | float | None]:
    record: dict[str, str | float | None] = {
        "group": row.group,
        "statistics": row.statistics,
        "seeds": " ".join(map(str, row.seeds)),
        "measures": row.measures,
        "against": row.against,
    }
    for name in ESTIMATES:
        value: Estimate | None = getattr(row, name)
        for part in ("n", "mean", "std", "error", "low", "high"):
            record[f"{name}_{part}"] = rounded(getattr(value, part, None))
        if name.endswith("_difference"):
            record[f"{name}_verdict"] = None if value is None else value.verdict
    return record
