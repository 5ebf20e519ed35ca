"""The comparisons that the science pages draw on: tables of paired differences, each corrected for its number."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddn_lightning.report.names import title_of
from ddn_lightning.report.seed_group import STATISTICS, Statistics
from ddn_lightning.report.statistic import Estimate
from ddn_lightning.report.tables import as_ranges, markdown_table
from study.gain import ONLY_STATISTICS
from study.holm import family_size, marked
from study.measured import HARD_CONTROL, MEASURES, Group, MeasuredRun, difference, reported

Arm = tuple[str, str]  # plug-in and options
Runs = Mapping[Group, Sequence[MeasuredRun]]
Kinds = tuple[Statistics, Statistics]
SMALL = ("cifar10@16", "ResNet18 width 16", "online", 200)  # the test bed of the study
SPREAD: Arm = ("label_smoothing", "epsilon=0.5 over old classes, old memory, additive")
ALONE: Arm = ("none", "")
HARD: Arm = ("none", HARD_CONTROL)
EXACT: Arm = ("ddn", "")
STEP: Arm = ("ddn", "lookahead=step")
DELAYED: Arm = ("ddn", "lookahead=delayed")
TWO_STEPS: Arm = ("none", "replay_steps=2")
OLD_ONLY: Arm = ("none", "one batch of old memory, hard labels")
TOGETHER: Arm = ("none", "one forward pass of both batches")
BOTH: tuple[Kinds, ...] = (("running", "running"), ("calibrated", "calibrated"))
TITLES: Mapping[Arm, str] = {
    ALONE: "alone",
    HARD: "hard draw",
    EXACT: "DDN, exact",
    STEP: "DDN, step",
    DELAYED: "DDN, delayed",
    SPREAD: "evenly spread labels",
    TWO_STEPS: "two steps per batch",
    OLD_ONLY: "one batch of old memory only, hard labels",
    ("none", ONLY_STATISTICS): "a draw that only moves statistics",
    ("none", "old_memory_weight=1 that leaves statistics alone"): "hard draw that leaves statistics alone",
    ("none", "replay_batch_size=64"): "64 replayed images a step",
    ("none", "a second step on memory alone"): "a second step, on memory alone",
    ("none", "concatenated batches, lr=0.06"): "one forward pass, one mean",
    TOGETHER: "one forward pass, two means",
    ("none", "running_statistics=memory"): "BN Tricks: only memory moves statistics",
    ("ddn", "statistics moved by the look-ahead"): "DDN, exact, its look-ahead moves statistics",
    ("ddn", "updates_per_step=2"): "two updates of G per step",
    ("ddn", "G from task 2"): "G learns from task 2 on",
    ("ddn", "inner_lr=0.3"): "inner learning rate of 0.3",
}
READINGS: tuple[Arm, ...] = tuple(
    ("ddn", name)
    for name in (
        "Eq. 7 literally",
        "G_old in the inner loop",
        "one outer batch of old memory and the incoming one",
        "updates_per_step=2",
        "G from task 2",
        "inner_lr=0.3",
    )
)
NORMALISATIONS: tuple[Arm, ...] = tuple(
    ("none", name) for name in ("running_statistics=memory", "Continual Normalization", "GroupNorm", "AdaB2N")
)
# Table: pairs of arms, of which the second is the control.
PAIRS: Mapping[str, tuple[tuple[Arm, Arm], ...]] = {
    "controls": (
        (EXACT, ALONE),
        (EXACT, HARD),
        (EXACT, SPREAD),
        (TWO_STEPS, EXACT),
        (TWO_STEPS, STEP),
        (TWO_STEPS, ALONE),
        (STEP, HARD),
        (STEP, EXACT),
        (HARD, ALONE),
        (("none", "old_memory_weight=1 that leaves statistics alone"), ALONE),
        (("none", "replay_batch_size=64"), ALONE),
        (("none", "replay_batch_size=64"), HARD),
        (("none", "8 incoming samples among the replayed"), ALONE),
        (("none", "a second step on memory alone"), ALONE),
        (("none", "concatenated batches, lr=0.06"), ALONE),
        (("ddn", "statistics moved by the look-ahead"), EXACT),
    ),
    "delayed": ((DELAYED, EXACT), (DELAYED, HARD), (DELAYED, ALONE)),
    "readings": (
        (READINGS[0], OLD_ONLY),
        (READINGS[0], ALONE),
        *((arm, control) for arm in READINGS for control in (EXACT, HARD)),
    ),
    "normalisations": (
        *((arm, ALONE) for arm in (*NORMALISATIONS, TOGETHER)),
        (NORMALISATIONS[-1], TOGETHER),
    ),
}
SIZES = ((EXACT, ALONE), (STEP, ALONE), (HARD, ALONE), (EXACT, HARD), (STEP, HARD), (EXACT, SPREAD), (TWO_STEPS, EXACT))
TABLES = (*PAIRS, "methods beside er", "hosts", "sizes")
HOSTS = ("derpp", "cls_er", "er_ace")
HOST_PAIRS = ((EXACT, ALONE), (STEP, ALONE), (HARD, ALONE), (EXACT, HARD), (STEP, HARD))
CALIBRATED_TOO = (
    *("", "concatenated batches, lr=0.06", "calibrated on the newest task", "one forward pass of both batches"),
    *("Continual Normalization", "AdaB2N"),
)
COLUMNS = ("comparison", "seeds", *(f"{measure.upper()}, {kind}" for kind in STATISTICS for measure in MEASURES))


@dataclass(frozen=True)
class Row:
    """Paired differences of a group to its control.

    Args:
        title: What is compared.
        seeds: The seeds that both have.
        values: For each statistics ACC and FM.
    """

    title: str
    seeds: tuple[int, ...]
    values: tuple[Estimate | None, ...]


def rows_of(runs: Runs, pairs: Sequence[tuple[Group, Group]], prefix: str = "") -> list[Row]:
    """The rows of those pairs that have a common seed.

    Args:
        runs: Runs by group.
        pairs: Groups and their controls.
        prefix: What titles begin with.
    """
    rows = []
    for group, control in pairs:
        seeds = {run.seed for run in runs.get(group, ())} & {run.seed for run in runs.get(control, ())}
        if seeds:
            values = tuple(difference(runs, group, control, m, kind) for kind in BOTH for m in MEASURES)
            rows.append(Row(f"{prefix}{_title(group)} against {_title(control)}", tuple(sorted(seeds)), values))
    return rows


def compared(runs: Sequence[MeasuredRun], name: str) -> list[Row]:
    """The rows of one of the tables of :data:`PAIRS`, of ``methods beside er``, ``hosts`` or ``sizes``."""
    known = reported(runs)
    if name in PAIRS:
        return rows_of(known, [(Group(*SMALL, "er", *a), Group(*SMALL, "er", *b)) for a, b in PAIRS[name]])
    if name == "methods beside er":
        return rows_of(known, [(Group(*SMALL, host, *ALONE), Group(*SMALL, "er", *ALONE)) for host in HOSTS])
    if name == "hosts":
        return [
            row
            for host in HOSTS
            for row in rows_of(
                known,
                [(Group(*SMALL, host, *a), Group(*SMALL, host, *b)) for a, b in HOST_PAIRS],
                f"{title_of(host)}: ",
            )
        ]
    beds = dict.fromkeys(group.test_bed for group in known if group.method == "er" and group.test_bed != SMALL)
    rows = []
    for bed in sorted(beds, key=_size):
        pairs = [(Group(*bed, "er", *a), Group(*bed, "er", *b)) for a, b in SIZES]
        rows += rows_of(known, pairs, f"{bed_title(bed)}: ")
    return rows


def comparison_table(rows: Sequence[Row]) -> str:
    """Rows as Markdown, with how many differences the correction counts."""
    if not rows:
        return "No run has finished."
    family = [value for row in rows for value in row.values]
    cells = iter(marked(family))
    lines = [[row.title, as_ranges(row.seeds), *(next(cells) for _ in row.values)] for row in rows]
    return f"{markdown_table(COLUMNS, lines)}\nBold: significant by Holm's rule for {family_size(family)} differences."


def calibration_table(runs: Sequence[MeasuredRun]) -> str:
    """What calibrated statistics change for each method alone, and for ER in one forward pass, as Markdown."""
    known = reported([run for run in runs if None not in (run.fm, run.calibrated_acc, run.calibrated_fm)])
    rows, names, seeds = [], [], []
    for group in sorted(known, key=lambda g: (_size(g.test_bed), g.method != "er", g.method)):
        if group.plugin != "none" or group.options not in CALIBRATED_TOO or len(known[group]) < 2:
            continue
        values = tuple(difference(known, group, group, m, ("calibrated", "running")) for m in MEASURES)
        title = title_of(group.method) + (f", {_title(group)}" if group.options else "")
        rows.append(values)
        names.append([bed_title(group.test_bed), title])
        seeds.append(as_ranges(sorted(run.seed for run in known[group])))
    family = [value for row in rows for value in row]
    cells = iter(marked(family))
    lines = [[*name, seed, next(cells), next(cells)] for name, seed in zip(names, seeds, strict=True)]
    table = markdown_table(("test bed", "method", "seeds", "ACC", "FM"), lines)
    return f"{table}\nBold: significant by Holm's rule for {family_size(family)} differences."


def bed_title(bed: tuple[str, str, str, int]) -> str:
    """Data, width, setting and memory in a few words.

    >>> bed_title(SMALL)
    'CIFAR-10 at 16x16, width 16, M = 200'
    """
    data, network, setting, size = bed
    name, _, rest = data.partition(",")
    name, _, pixels = name.partition("@")
    title = name.replace("cifar", "CIFAR-").replace("tiny_imagenet", "Tiny-ImageNet")
    where = f" at {pixels}x{pixels}" if pixels else ""
    how = "" if setting == "online" else f", {setting}"
    return f"{title}{where}{',' + rest if rest else ''}, {network.removeprefix('ResNet18 ')}, M = {size}{how}"


def _title(group: Group) -> str:
    arm = group.plugin, group.options
    title = TITLES.get(arm, group.options or group.plugin)
    return title_of(group.method) if arm == ALONE else title


def _size(bed: tuple[str, str, str, int]) -> tuple[bool, str, bool, int, str]:
    """Small images last, then by data, setting, memory and network."""
    data, network, setting, size = bed
    return "@" in data, data, setting != "online", size, network
