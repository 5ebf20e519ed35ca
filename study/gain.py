"""Where the gain of ER + DDN over ER comes from: statistics, rehearsal, or the learned label."""

from collections.abc import Sequence
from dataclasses import dataclass

from ddn_lightning.report.seed_group import STATISTICS, Statistics
from ddn_lightning.report.statistic import Estimate, estimate
from study.holm import family_size, marked
from study.measured import HARD_CONTROL, MEASURES, Group, MeasuredRun, difference, reported

ONLY_STATISTICS = "a draw that only moves statistics"
# From ER to ER + DDN, one thing at a time: what each arm adds to the one before, its plug-in and its options.
ARMS = (
    ("ER", "none", ""),
    ("+ a draw of old memory that only moves statistics", "none", ONLY_STATISTICS),
    ("+ its gradient, with hard labels", "none", HARD_CONTROL),
    ("+ learned soft labels (ER + DDN)", "ddn", ""),
)


@dataclass(frozen=True)
class Arm:
    """One arm of the chain, evaluated in one way.

    Args:
        adds: What it adds to the arm before.
        statistics: BatchNorm statistics of the evaluation.
        seeds: The seeds that all arms have in common.
        acc: Average accuracy over them.
        fm: Forgetting over them.
        acc_gain: Accuracy minus that of the arm before, seed by seed; ``None`` for the first.
        fm_gain: The same of forgetting.
    """

    adds: str
    statistics: Statistics
    seeds: tuple[int, ...]
    acc: Estimate
    fm: Estimate
    acc_gain: Estimate | None
    fm_gain: Estimate | None


def gain_arms(runs: Sequence[MeasuredRun], test_bed: tuple[str, str, str, int]) -> list[Arm]:
    """The arms that were measured on a test bed, on the seeds that all of them have, for both statistics.

    Args:
        runs: Runs, of which those count that were evaluated with both statistics.
        test_bed: Data, network, setting and buffer size.
    """
    complete = [run for run in runs if None not in (run.fm, run.calibrated_acc, run.calibrated_fm)]
    known = reported(complete)
    chain = [(adds, Group(*test_bed, "er", plugin, options)) for adds, plugin, options in ARMS]
    chain = [(adds, group) for adds, group in chain if group in known]
    seeds = set.intersection(*({run.seed for run in known[group]} for _, group in chain)) if chain else set()
    groups = {group: [run for run in known[group] if run.seed in seeds] for _, group in chain}
    arms = []
    for kind in STATISTICS:
        before: Group | None = None
        for adds, group in chain:
            acc, fm = (
                estimate([v for run in groups[group] if (v := run.value(m, kind)) is not None]) for m in MEASURES
            )
            if acc is None or fm is None:
                return []
            gains = [None if before is None else difference(groups, group, before, m, (kind, kind)) for m in MEASURES]
            arms.append(Arm(adds, kind, tuple(sorted(seeds)), acc, fm, *gains))
            before = group
    return arms


def gain_table(arms: Sequence[Arm]) -> str:
    """The steps of the chain as Markdown: how each changes ACC and FM, with either statistics."""
    lines = ["| step | ACC, running | FM, running | ACC, calibrated | FM, calibrated |", "|---|---|---|---|---|"]
    running, calibrated = ([arm for arm in arms if arm.statistics == kind] for kind in STATISTICS)
    family = [gain for pair in zip(running, calibrated, strict=True) for arm in pair for gain in gains_of(arm)]
    changes = iter(marked(family))
    for one, other in zip(running, calibrated, strict=True):
        cells = [next(changes) for _ in range(4)]
        if one.acc_gain is None:
            cells = [f"{value.mean:.2f}" for value in (one.acc, one.fm, other.acc, other.fm)]
        lines.append(f"| {' | '.join([one.adds, *cells])} |")
    note = f"Bold: significant by Holm's rule for {family_size(family)} differences."
    return "\n".join([*lines, "", note]) + "\n"


def gains_of(arm: Arm) -> tuple[Estimate | None, Estimate | None]:
    """What an arm changes in ACC and in FM."""
    return arm.acc_gain, arm.fm_gain
