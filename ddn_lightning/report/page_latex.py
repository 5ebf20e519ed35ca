"""The main tables of the report page as LaTeX."""

from collections.abc import Sequence

from ddn_lightning.report.group_comparison import as_latex, compare_groups
from ddn_lightning.report.page_tables import PageTable, paper_notes, results_table, seeds_table
from ddn_lightning.report.tables import NOTHING, latex_table
from ddn_lightning.runs.recorded_run import RecordedRun


def latex_tables(runs: Sequence[RecordedRun]) -> str:
    """The results of each run, over seeds, and paired by seed, as far as there are any; notes are comments.

    Args:
        runs: The runs, each with a unique name.
    """
    finished = [run for run in runs if run.is_finished]
    if not finished:
        return "% none of these runs is finished\n"
    comparison = compare_groups(finished)
    notes = [f"Without a number of the paper: {line}" for line in paper_notes(finished)]
    notes += [f"Warning: {line}" for line in comparison.warnings]
    parts = [_table(results_table(finished, {}), ["Results of each run, accuracies in percent", *notes])]
    if (groups := seeds_table(finished)).rows:
        parts.append(_table(groups, ["Mean ± standard deviation (number of runs) over seeds", *notes]))
    if comparison.has_pairs:
        parts.append(as_latex(comparison))
    return "\n".join(parts)


def _table(table: PageTable, comments: Sequence[str]) -> str:
    alignment = "".join("r" if column.is_number else "l" for column in table.columns)
    rows = [[cell.text or NOTHING for cell in row] for row in table.rows]
    return latex_table([column.title for column in table.columns], rows, alignment, comments)
