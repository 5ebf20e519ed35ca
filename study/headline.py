"""The sentences with numbers of the front page and of the recommendation, from the recorded runs."""

from collections.abc import Sequence

from ddn_lightning.report.statistic import Estimate, estimate
from ddn_lightning.report.tables import as_ranges
from study.comparisons import ALONE, EXACT, HARD, SMALL, SPREAD, TWO_STEPS, Arm, Kinds, bed_title
from study.holm import family_size, marked
from study.measured import MEASURES, Group, Measure, MeasuredRun, difference, reported

Bed = tuple[str, str, str, int]
PAPER: Bed = ("cifar10", "ResNet18 width 64", "online", 200)  # the paper's network and memory
NARROW: Bed = ("cifar10", "ResNet18 width 20", "online", 200)
RUNNING: Kinds = ("running", "running")
CALIBRATED: Kinds = ("calibrated", "calibrated")
INSTEAD: Kinds = ("calibrated", "running")
# A sentence is its words and where each of its numbers comes from: arm, control, measure, statistics of either.
Source = tuple[Arm, Arm, Measure, Kinds]
Sentence = tuple[str, tuple[Source, ...]]
CALIBRATION: Sentence = (
    "calibrated statistics, which cost no training, change ER by {} in ACC and by {} in FM",
    tuple((ALONE, ALONE, measure, INSTEAD) for measure in MEASURES),
)
DDN: Sentence = (
    "DDN with its exact gradient changes ER by {} in ACC and by {} in FM; calibrated, by {} and {}",
    tuple((EXACT, ALONE, measure, kind) for kind in (RUNNING, CALIBRATED) for measure in MEASURES),
)
LABELS: Sentence = (
    "the labels of DDN differ from hard labels on the same draw by {} in ACC, calibrated {}; they differ from labels "
    "spread evenly, with nothing learned, by {}, calibrated {}",
    tuple((EXACT, control, "acc", kind) for control in (HARD, SPREAD) for kind in (RUNNING, CALIBRATED)),
)
COST: Sentence = (
    "a second step of ER per batch, which takes less time than DDN, differs from DDN by {} in ACC and by {} in FM; "
    "calibrated, by {} and {}",
    tuple((TWO_STEPS, EXACT, measure, kind) for kind in (RUNNING, CALIBRATED) for measure in MEASURES),
)
SENTENCES: Sequence[tuple[Bed, Sentence]] = (
    (PAPER, CALIBRATION),
    (PAPER, DDN),
    (PAPER, LABELS),
    (NARROW, CALIBRATION),
    (NARROW, DDN),
    (SMALL, LABELS),
    (SMALL, COST),
)


def headline(runs: Sequence[MeasuredRun]) -> str:
    """What the runs show, a sentence for each test bed and question, as Markdown."""
    known = reported(runs)
    found = [(bed, words, _values(known, bed, sources)) for bed, (words, sources) in SENTENCES]
    found = [(bed, words, values) for bed, words, values in found if None not in values]
    numbers = iter(marked([value for _, _, values in found for value in values]))
    lines = []
    for bed, words, values in found:
        lines.append(f"- {bed_title(bed)}: {words.format(*(next(numbers) for _ in values))}.")
    size = family_size([value for _, _, values in found for value in values])
    note = (
        "Online, ResNet-18, running statistics unless calibrated. Differences are paired by seed, with 95 % intervals "
        f"and the number of seeds. Only bold differences are shown after Holm's correction for these {size}."
    )
    return "\n".join([*lines, "", note])


def levels(runs: Sequence[MeasuredRun]) -> str:
    """ACC and FM of what we recommend, with running and with calibrated statistics, as Markdown."""
    known = reported(runs)
    lines = []
    for bed in (PAPER, NARROW, SMALL):
        for arm, title in ((ALONE, "ER"), (TWO_STEPS, "ER, two steps per batch")):
            group = Group(*bed, "er", *arm)
            members = [run for run in known.get(group, []) if run.calibrated_acc is not None]
            if members:
                cells = []
                for kind in ("running", "calibrated"):
                    acc, fm = (estimate(run.value(m, kind) for run in members) for m in MEASURES)
                    assert acc is not None
                    assert fm is not None
                    cells.append(f"{acc.mean_std} / {fm.mean_std}")
                seeds = as_ranges(sorted(run.seed for run in members))
                lines.append(f"| {bed_title(bed)} | {title} | {seeds} | {' | '.join(cells)} |")
    header = "| test bed | method | seeds | ACC / FM, running | ACC / FM, calibrated |\n|---|---|---|---|---|"
    return "\n".join([header, *lines])


def _values(known: dict[Group, list[MeasuredRun]], bed: Bed, sources: Sequence[Source]) -> list[Estimate | None]:
    values = []
    for arm, control, measure, kinds in sources:
        group, other = Group(*bed, "er", *arm), Group(*bed, "er", *control)
        values.append(difference(known, group, other, measure, kinds) if group in known else None)
    return values
