"""The paper's ablations of DDN on ER: the labels of its Table 3, and the weights of soft label and old G."""

from collections.abc import Sequence

from ddn_lightning.report.seed_group import STATISTICS
from ddn_lightning.report.statistic import estimate
from ddn_lightning.report.tables import NOTHING, as_ranges, markdown_table
from study.beside_paper import paper_target_of
from study.gain import ONLY_STATISTICS
from study.measured import HARD_CONTROL, MEASURES, Group, MeasuredRun, reported

TitledArm = tuple[str, str, str]  # title, plug-in and options
DDN = "ddn", "lookahead=step"
TABLE_3: tuple[TitledArm, ...] = (
    ("ER", "none", ""),
    ("DDN's draw with hard labels", "none", HARD_CONTROL),
    ("random labels", "random_labels", ""),
    ("label smoothing, epsilon = 0.1", "label_smoothing", "epsilon=0.1"),
    ("label smoothing, epsilon = 0.5", "label_smoothing", "epsilon=0.5"),
    ("L2Y", "l2y", ""),
    ("DDN", *DDN),
)
WEIGHTS: tuple[TitledArm, ...] = (
    ("ER", "none", ""),
    ("alpha = 0", "none", ONLY_STATISTICS),
    ("alpha = 0.5", "ddn", f"{DDN[1]}, alpha=0.5, beta=0.9"),
    ("alpha = 1", *DDN),
    ("alpha = 2", "ddn", f"{DDN[1]}, alpha=2, beta=0.9"),
    ("beta = 0", "ddn", f"{DDN[1]}, alpha=1, beta=0"),
    ("beta = 0.5", "ddn", f"{DDN[1]}, alpha=1, beta=0.5"),
    ("beta = 0.9", *DDN),
    ("beta = 1", "ddn", f"{DDN[1]}, alpha=1, beta=1"),
)


def ablation_table(runs: Sequence[MeasuredRun], test_bed: tuple[str, str, str, int], arms: Sequence[TitledArm]) -> str:
    """Mean ± standard deviation of each arm on the seeds that all of them have, beside the paper's ACC / FM.

    Args:
        runs: Runs, of which those count that were evaluated with both statistics and served no choice.
        test_bed: Data, network, setting and buffer size.
        arms: What to show, as far as it was run.
    """
    groups = reported([run for run in runs if run.calibrated_acc is not None])
    known = {title: Group(*test_bed, "er", *arm) for title, *arm in arms}
    named = {title: group for title, group in known.items() if group in groups}
    seeds = set.intersection(*({run.seed for run in groups[group]} for group in named.values()))
    header = ["arm", *(f"{m.upper()}, {kind}" for kind in STATISTICS for m in MEASURES), "paper"]
    rows = []
    for title, group in named.items():
        members = [run for run in groups[group] if run.seed in seeds]
        means = [estimate(run.value(m, kind) for run in members) for kind in STATISTICS for m in MEASURES]
        target = paper_target_of(group)
        paper = NOTHING if target is None or target.fm is None else f"{target.acc:.2f} / {target.fm:.2f}"
        rows.append([title, *(NOTHING if mean is None else mean.mean_std for mean in means), paper])
    return f"Seeds {as_ranges(sorted(seeds))}:\n\n{markdown_table(header, rows)}"
