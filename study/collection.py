"""The table of all methods: a line for each, alone and with each plug-in, by both kinds of BatchNorm statistics."""

from collections.abc import Sequence

from ddn_lightning.report.names import title_of
from ddn_lightning.report.seed_group import STATISTICS, Statistics
from ddn_lightning.report.statistic import estimate
from ddn_lightning.report.tables import NOTHING, markdown_table
from ddn_lightning.reproduce.grid import Cell
from study.measured import HARD_CONTROL, Group, MeasuredRun, reported

ARMS = {"none": "alone", "hard": "+ hard draw", "ddn": "+ DDN"}  # by plug-in
# DDN was recorded with study.look_aheads.StepLookAhead
RECORDED_ARMS = {"hard": ("none", HARD_CONTROL), "ddn": ("ddn", "lookahead=step")}


def collection_table(cells: Sequence[Cell], runs: Sequence[MeasuredRun], data: str, network: str) -> str:
    """ACC / FM (n) of each method, alone and with each plug-in, then the same with calibrated statistics, as Markdown.

    Runs on seeds that served for choosing are left out, and so are cells that were not run.

    Args:
        cells: Cells of the plan ``collection_images``.
        runs: Runs, such as those of ``measured.csv``.
        data: Their dataset.
        network: Their network.
    """
    groups = reported(runs)
    lines: dict[tuple[str, ...], dict[str, Sequence[MeasuredRun]]] = {}
    for cell in cells:
        arm = RECORDED_ARMS.get(cell.plugin, (cell.plugin, cell.variant))
        found = groups.get(Group(data, network, cell.setting, cell.buffer_size, cell.method, *arm))
        if found is not None:
            line = (cell.setting, cell.data, str(cell.buffer_size), title_of(cell.method))
            lines.setdefault(line, {})[cell.plugin] = found
    plugins = [plugin for plugin in ARMS if any(plugin in arms for arms in lines.values())]
    names = [name for plugin in plugins for name in (ARMS[plugin], f"{ARMS[plugin]}, calibrated")]
    header = ["setting", "data", "buffer", "method", *(f"{name}: ACC ↑ / FM ↓" for name in names)]
    by_title = sorted(lines.items(), key=lambda item: item[0][3].casefold())
    rows = [[*line, *(_pair(arms.get(p, ()), s) for p in plugins for s in STATISTICS)] for line, arms in by_title]
    return markdown_table(header, rows, numbers_from=4)


def _pair(runs: Sequence[MeasuredRun], statistics: Statistics) -> str:
    """ACC / FM (n)."""
    acc, fm = (estimate(run.value(measure, statistics) for run in runs) for measure in ("acc", "fm"))
    return NOTHING if acc is None else f"{acc.mean_std} / {NOTHING if fm is None else fm.mean_std} ({acc.n})"
