"""Groups of runs that differ in their seed only, each compared with a baseline on the same seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddn_lightning.report.groups import by_seed
from ddn_lightning.report.seed_group import STATISTICS, SeedGroup, Statistics, baselines_of, names_of
from ddn_lightning.report.statistic import Estimate, estimate, paired_difference, paired_ratio
from ddn_lightning.runs.recorded_run import RecordedRun


@dataclass(frozen=True)
class ComparedRow:
    """One group with one kind of statistics.

    Args:
        group: How to call it.
        test_bed: A number that it has in common with the groups that it may be compared with.
        statistics: BatchNorm statistics of the evaluation.
        seeds: Its seeds.
        acc: Average accuracy in percent.
        fm: Forgetting in percent.
        against: What it is compared with; ``None`` for a baseline, and where there is none.
        acc_difference: Its accuracy minus that of what it is compared with, on the same seeds.
        fm_difference: The same of forgetting.
        cpu_minutes: Processor time.
        baseline: The group that its cost is measured in.
        cost: Processor time in that of the baseline, on the same seeds: what one of its steps costs in the baseline's.
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

    @property
    def title(self) -> str:
        """The group with its statistics."""
        return _title(self.group, self.statistics)


@dataclass(frozen=True)
class Compared:
    """What a comparison shows, and what it does not.

    Args:
        rows: The rows; each baseline stands above what is compared with it.
        left_out: Runs that are not in it, each with the reason.
    """

    rows: Sequence[ComparedRow]
    left_out: Sequence[str] = ()

    @property
    def has_pairs(self) -> bool:
        """Whether any two groups share a seed."""
        return any(row.acc_difference is not None and row.against != row.group for row in self.rows)


def compared(
    runs: Sequence[RecordedRun], baseline: str | None = None, statistics: Sequence[Statistics] = STATISTICS
) -> Compared:
    """Compare groups of runs with a baseline on the same data, network and memory.

    Args:
        runs: The runs.
        baseline: Name of the group to compare with; by default each method with its plain form.
        statistics: BatchNorm statistics to show, where they were evaluated.

    Raises:
        ConfigurationError: If no group has the baseline's name.
    """
    groups, left_out = _grouped(runs)
    baselines = baselines_of(groups, baseline)
    names = names_of(groups)
    order = {group: number for number, group in enumerate(groups)}
    beds = {bed: number for number, bed in enumerate(dict.fromkeys(group.test_bed for group in groups))}

    def place(group: SeedGroup) -> tuple[int, int, bool, int]:
        known = baselines[group] or group
        return beds[group.test_bed], order[known], known is not group, order[group]

    rows = [
        _row(group, baselines[group], kind, "running" in statistics, names, beds[group.test_bed])
        for group in sorted(groups, key=place)
        for kind in statistics
    ]
    return Compared([row for row in rows if row is not None], left_out)


def _grouped(runs: Sequence[RecordedRun]) -> tuple[list[SeedGroup], list[str]]:
    """The groups of finished runs, and what is in none."""
    left_out = [f"{run.name}: {'; '.join(run.problems) or 'not finished'}" for run in runs if not run.is_finished]
    groups = []
    for members in by_seed([run for run in runs if run.is_finished]):
        kept: dict[int, RecordedRun] = {}
        for run in members:
            assert run.results is not None
            known = kept.setdefault(run.results.seed, run)
            if known is not run:
                left_out.append(f"{run.name}: repeats seed {run.results.seed} of {known.name}")
        groups.append(SeedGroup(kept))
    return groups, left_out


def _row(
    group: SeedGroup,
    baseline: SeedGroup | None,
    kind: Statistics,
    has_running: bool,
    names: Mapping[SeedGroup, str],
    bed: int,
) -> ComparedRow | None:
    """One row, or ``None`` where a group was not evaluated with such statistics."""
    acc, fm = group.values("acc", kind), group.values("fm", kind)
    mean = _estimate(acc)
    if mean is None:
        return None
    is_itself = baseline is group
    reference: Statistics = "running" if is_itself else kind  # a calibrated baseline is held against itself without
    acc_difference = fm_difference = None
    if baseline is not None and (not is_itself or (kind == "calibrated" and has_running)):
        acc_difference = paired_difference(acc, baseline.values("acc", reference))
        fm_difference = paired_difference(fm, baseline.values("fm", reference))
    return ComparedRow(
        group=names[group],
        test_bed=bed,
        statistics=kind,
        seeds=tuple(sorted(seed for seed, value in acc.items() if value is not None)),
        acc=mean,
        fm=_estimate(fm),
        against=None if baseline is None or acc_difference is None else _title(names[baseline], reference),
        acc_difference=acc_difference,
        fm_difference=fm_difference,
        cpu_minutes=_estimate(group.cpu_minutes),
        baseline=None if baseline is None else names[baseline],
        cost=None if baseline is None else paired_ratio(group.cpu_minutes, baseline.cpu_minutes),
    )


def _estimate(values: Mapping[int, float | None]) -> Estimate | None:
    return estimate([value for value in values.values() if value is not None])


def _title(group: str, statistics: Statistics) -> str:
    return group if statistics == "running" else f"{group}, calibrated"
