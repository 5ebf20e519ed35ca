"""The recorded runs of the table of all methods."""

from collections.abc import Sequence

from ddn_lightning.reproduce.cell import Cell
from ddn_lightning.runs.results import RunResult
from study.measured import HARD_CONTROL, Group, MeasuredRun, reported

# by plug-in; DDN was recorded with study.look_aheads.StepLookAhead
RECORDED_ARMS = {"hard": ("none", HARD_CONTROL), "ddn": ("ddn", "lookahead=step")}


def results_of(
    cells: Sequence[Cell], runs: Sequence[MeasuredRun], data: str, network: str
) -> dict[Cell, list[RunResult]]:
    """Recorded results of those cells that were run, on seeds that served for nothing else.

    Args:
        cells: Cells of the table.
        runs: Runs, such as those of ``measured.csv``.
        data: Their dataset.
        network: Their network.
    """
    groups, found = reported(runs), {}
    for cell in cells:
        arm = RECORDED_ARMS.get(cell.plugin, (cell.plugin, cell.variant))
        members = groups.get(Group(data, network, cell.setting, cell.buffer_size, cell.method, *arm))
        if members is not None:
            found[cell] = [
                RunResult(run.acc, run.fm, run.per_task, run.calibrated_acc, run.calibrated_fm) for run in members
            ]
    return found
