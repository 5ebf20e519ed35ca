"""Ways to learn a label that were tried: each on a choosing seed, and on fresh seeds what looked best there."""

from collections.abc import Mapping, Sequence

from ddn_lightning.report.statistic import Estimate
from ddn_lightning.report.tables import NOTHING, markdown_table
from study.holm import family_size, marked
from study.measured import HARD_CONTROL, MEASURES, Group, Measure, MeasuredRun, difference, reported

CHOOSING_SEED = 0
COLUMNS = ("label of the extra draw", f"ACC, seed {CHOOSING_SEED}", "FM", "ACC to ER", "FM to ER", "ACC to hard labels")
ER, HARD = ("none", ""), ("none", HARD_CONTROL)  # plug-in and options
CONTROLS: tuple[tuple[tuple[str, str], Measure], ...] = ((ER, "acc"), (ER, "fm"), (HARD, "acc"))
# What is shown of each: its title, plug-in and options.
LABELS = (
    ("ER", *ER),
    ("+ hard labels", *HARD),
    ("+ DDN", "ddn", ""),
    ("+ DDN, the outer loss in one batch", "ddn", "one outer batch"),
    ("+ DDN, the outer loss with calibrated statistics", "ddn", "calibrated outer loss"),
    ("+ DDN, inner and outer draws from disjoint halves of the memory", "ddn", "inner and outer from disjoint halves"),
    ("+ DDN, the outer loss on a batch not yet trained on", "ddn", "outer loss on a batch not yet trained on"),
    ("+ DDN, G also sees the hard label", "ddn", "G sees the hard label"),
    ("+ DDN, G chooses its share of a label", "ddn", "G chooses its share"),
    ("+ DDN, `step` without an extra pass", "ddn", "no extra pass"),
)


def label_table(runs: Sequence[MeasuredRun], test_bed: tuple[str, str, str, int]) -> str:
    """ACC and FM of each label on the choosing seed, and on fresh seeds by how much it differs from its controls.

    All with calibrated statistics, as Markdown.

    Args:
        runs: Runs, of which those count that were evaluated with calibrated statistics.
        test_bed: Data, network, setting and buffer size.
    """
    chosen_on = {run.group: run for run in runs if run.seed == CHOOSING_SEED}
    fresh = reported(runs)
    groups = {title: Group(*test_bed, "er", *arm) for title, *arm in LABELS}
    gains = [
        _gain(fresh, group, Group(*test_bed, "er", *control), measure)
        for group in groups.values()
        for control, measure in CONTROLS
    ]
    cells = iter(marked(gains))
    rows = []
    for title, group in groups.items():
        values = [_value(chosen_on.get(group), measure) for measure in MEASURES]
        rows.append([title, *values, *(next(cells) for _ in CONTROLS)])
    return f"{markdown_table(COLUMNS, rows)}\nBold: significant by Holm's rule for {family_size(gains)} differences."


def _value(run: MeasuredRun | None, measure: Measure) -> str:
    value = None if run is None else run.value(measure, "calibrated")
    return NOTHING if value is None else f"{value:.2f}"


def _gain(
    fresh: Mapping[Group, Sequence[MeasuredRun]], group: Group, control: Group, measure: Measure
) -> Estimate | None:
    """The difference to a control on the fresh seeds that both have."""
    if group == control or group not in fresh:
        return None
    return difference(fresh, group, control, measure, ("calibrated", "calibrated"))
