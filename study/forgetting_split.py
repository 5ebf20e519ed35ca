"""Why forgetting falls with calibrated statistics: old tasks end higher, or were never as high."""

from collections.abc import Sequence

from ddn_lightning.report.statistic import estimate
from ddn_lightning.report.tables import as_ranges, markdown_table
from study.measured import Matrix, MeasuredRun, reported

COLUMNS = ("data", "network", "M", "seeds", "FM", "best accuracy of old tasks", "their final accuracy")


def split_table(runs: Sequence[MeasuredRun]) -> str:
    """For ER alone: the change of FM and of its two parts from running to calibrated statistics, as Markdown.

    Args:
        runs: Runs, of which those count that have both matrices and served no choice.
    """
    groups = reported([run for run in runs if run.matrix and run.calibrated_matrix])
    rows = []
    for group, members in sorted(groups.items(), key=lambda item: item[0].test_bed):
        if (group.method, group.plugin, group.options, group.setting) == ("er", "none", "", "online"):
            parts = [(best_and_final(run.matrix), best_and_final(run.calibrated_matrix)) for run in members]
            best, final = ([after[part] - before[part] for before, after in parts] for part in (0, 1))
            changes = [estimate(b - f for b, f in zip(best, final, strict=True)), estimate(best), estimate(final)]
            seeds = as_ranges(sorted(run.seed for run in members))
            shown = [f"{change.mean:+.2f}" for change in changes if change is not None]
            rows.append([group.data, group.network, str(group.buffer_size), seeds, *shown])
    return markdown_table(COLUMNS, rows)


def best_and_final(matrix: Matrix) -> tuple[float, float]:
    """The highest and the final accuracy of a task, averaged over all tasks but the last: FM is their difference.

    >>> best_and_final(((90.0,), (50.0, 80.0), (60.0, 70.0, 90.0)))
    (85.0, 65.0)
    """
    old = range(len(matrix) - 1)
    best = [max(row[task] for row in matrix[task:]) for task in old]
    return sum(best) / len(best), sum(matrix[-1][task] for task in old) / len(best)
