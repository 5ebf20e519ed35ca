"""The table of methods on features of a pre-trained network, beside the same methods from scratch."""

from collections.abc import Sequence

from ddn_lightning.names import title_of
from ddn_lightning.report.statistic import Estimate, estimate
from ddn_lightning.report.tables import NOTHING, as_ranges, markdown_table
from study.measured import HARD_CONTROL, Group, MeasuredRun, command_lines, reported

PRETRAINED = "EfficientNet-Lite0 at 96, frozen"
SCRATCH = ("ResNet18 width 20", "ResNet18 width 20 in bf16-mixed")
HEADER = ("method", "network", "M", "seeds", "ACC ↑", "FM ↓", "CPU min a run")


def pretrained_table(runs: Sequence[MeasuredRun]) -> str:
    """For each dataset a table as Markdown, by memory and accuracy, with the command of its first row."""
    groups = reported(runs)
    parts = []
    for data in dict.fromkeys(group.data for group in groups if group.network == PRETRAINED):
        ours = [group for group in groups if (group.data, group.network) == (data, PRETRAINED)]
        sizes = {group.buffer_size for group in ours}
        ours += [group for group in groups if _is_beside(group, data, sizes)]
        ours.sort(key=lambda group: (group.buffer_size, -_mean(groups[group]).mean))
        command = groups[next(group for group in ours if group.network == PRETRAINED)][0].command
        rows = [_row(group, groups[group]) for group in ours]
        shown = "\n".join(command_lines(command))
        parts.append(f"**{data}**, online\n\n{markdown_table(HEADER, rows)}\n\n```text\n{shown}\n```")
    return "\n\n".join(parts) or "Nothing was measured yet."


def _is_beside(group: Group, data: str, sizes: set[int]) -> bool:
    """Whether a group from scratch, without options, has the same data and a memory that is in the table."""
    is_same = group.data == data and group.network in SCRATCH and group.buffer_size in sizes
    return is_same and group.setting == "online" and not group.options


def _row(group: Group, runs: Sequence[MeasuredRun]) -> list[str]:
    is_control = HARD_CONTROL in group.options
    title = title_of(group.method, "none") + " + hard draw" if is_control else title_of(group.method, group.plugin)
    minutes = estimate(run.cpu_minutes for run in runs)
    return [
        title,
        group.network,
        str(group.buffer_size) if group.buffer_size else NOTHING,
        as_ranges([run.seed for run in runs]),
        str(_mean(runs)),
        str(estimate(run.fm for run in runs) or NOTHING),
        NOTHING if minutes is None else f"{minutes.mean:.2f}",
    ]


def _mean(runs: Sequence[MeasuredRun]) -> Estimate:
    found = estimate(run.acc for run in runs)
    assert found is not None
    return found
