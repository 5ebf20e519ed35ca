"""What is behind the gain: ER to ER + DDN one thing at a time, with running and with calibrated statistics."""

import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddn_lightning.report.figures.style import in_style, panels, series
from ddn_lightning.report.seed_group import STATISTICS
from ddn_lightning.report.statistic import Estimate
from study.gain import Arm, gains_of
from study.holm import shown
from study.measured import MEASURES, Measure

LABELS = {"acc": "average accuracy ACC (%)", "fm": "forgetting FM (%)"}
LETTERS = 18  # in a line below an arm


def gain_figure(arms: Sequence[Arm]) -> Figure:
    """ACC and FM along the chain of arms, a line for either statistics, with what each step changes.

    Args:
        arms: From :func:`gain_arms`; at least one.
    """
    is_shown = shown([gain for arm in arms for gain in gains_of(arm)])
    with in_style():
        figure, axes = panels(1, len(MEASURES), size=(6.6, 4.3), margins=(0.8, 0.95, 0.5, 0.55))
        for panel, measure in zip(axes, MEASURES, strict=True):
            for number, kind in enumerate(STATISTICS):
                chosen = [place for place, arm in enumerate(arms) if arm.statistics == kind]
                are_shown = [is_shown[2 * place + MEASURES.index(measure)] for place in chosen]
                _draw(panel, [arms[place] for place in chosen], measure, number, are_shown)
            panel.margins(x=0.08, y=0.16)
            panel.set_ylabel(LABELS[measure])
            panel.grid(axis="x", visible=False)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="upper center", ncols=len(STATISTICS))
    return figure


def _draw(axes: Axes, arms: Sequence[Arm], measure: Measure, number: int, are_shown: Sequence[bool]) -> None:
    values = [arm.acc if measure == "acc" else arm.fm for arm in arms]
    gains = [arm.acc_gain if measure == "acc" else arm.fm_gain for arm in arms]
    places = range(len(arms))
    style: dict[str, Any] = {**series(number), "label": f"{arms[0].statistics} BatchNorm statistics", "capsize": 3}
    means = [value.mean for value in values]
    axes.errorbar(places, means, yerr=[value.std or 0.0 for value in values], **style)
    for place in places[1:]:
        gain = gains[place]
        middle = place - 0.5, (means[place - 1] + means[place]) / 2
        above = 9 if number == (measure == "acc") else -9  # points: outside of the two lines
        text: dict[str, Any] = {"ha": "center", "va": "bottom" if above > 0 else "top", "color": style["color"]}
        axes.annotate(
            _change(gain, are_shown[place]), middle, xytext=(0, above), textcoords="offset points", fontsize=10, **text
        )
    names = ["\n".join(textwrap.wrap(arm.adds, LETTERS)) for arm in arms]
    axes.set_xticks(list(places), names, fontsize=9)


def _change(gain: Estimate | None, is_shown: bool) -> str:
    """What a step changes: its mean, in brackets where it is not shown after the correction for all steps."""
    if gain is None:
        return ""
    text = f"{gain.mean:+.1f}"
    return text if is_shown else f"({text})"
