"""What a search has found: the score over each option, and the importance of the options."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddn_lightning.report.figures.run_figures import Picture
from ddn_lightning.report.figures.style import COLOURS, in_style, panels, shorten
from ddn_lightning.report.tuning import ArmRecord, TrialRecord

PANELS_IN_A_ROW = 3
STATES = {"complete": ("o", 0), "pruned": ("v", 1), "diverged": ("X", 4)}  # marker and colour
LABELS = {"complete": "complete", "pruned": "pruned, with ACC so far", "diverged": "diverged"}
AT_THE_BOTTOM = 0.03  # share of the height: 0 % would leave no room for the others
BEST: dict[str, Any] = {"marker": "*", "s": 260, "color": COLOURS[2], "zorder": 3, "label": "best"}
SCORE = "ACC, validation (%)"


def tuning_pictures(arm: ArmRecord) -> list[Picture]:
    """The figures of one study; none without trials."""
    if not arm.trials:
        return []
    best = "none is complete" if arm.best is None else f"best ACC {arm.trials[arm.best].score:.2f} %"
    title = f"{arm.title}: score of each trial over each option"
    pictures = [Picture(f"{arm.name}-slices", title, slice_figure(arm), f"{title}. {len(arm.trials)} trials, {best}.")]
    if arm.importance:
        title = f"{arm.title}: importance of each option"
        shares = ", ".join(f"{option} {100 * share:.0f} %" for option, share in arm.importance.items())
        description = f"{title}, its share of the variance of the scores (fANOVA): {shares}."
        pictures.append(Picture(f"{arm.name}-importance", title, importance_figure(arm.importance), description))
    return pictures


def slice_figure(arm: ArmRecord) -> Figure:
    """The score of each trial over the values of each option, one panel per option.

    Args:
        arm: A study with at least one trial.
    """
    options = list(arm.ranges)
    columns = min(len(options), PANELS_IN_A_ROW)
    with in_style():
        rows = -(-len(options) // columns)
        figure, axes = panels(rows, columns, size=(4.2, 3.4), margins=(0.8, 0.75, 0.2, 0.6), sharey=True)
        for panel, option in zip(axes, options, strict=False):
            _draw_slice(panel, option, arm)
        for panel in axes[len(options) :]:
            panel.set_visible(False)
        for panel in axes[::columns]:
            panel.set_ylabel(SCORE)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="upper center", ncols=len(labels))
    return figure


def importance_figure(importance: Mapping[str, float]) -> Figure:
    """A bar for each option: its share of the variance of the scores.

    Args:
        importance: Share by option, the largest first.
    """
    with in_style():
        figure, (axes,) = panels(size=(6.4, 1.1 + 0.4 * len(importance)), margins=(2.6, 0.65, 0.5, 0.15))
        names = [shorten(option) for option in importance]
        bars = axes.barh(names, [100 * share for share in importance.values()], color=COLOURS[0])
        axes.bar_label(bars, fmt="%.0f", padding=3)
        axes.invert_yaxis()
        axes.set_xlabel("share of the variance (%)")
        axes.grid(axis="y", visible=False)
    return figure


def _draw_slice(axes: Axes, option: str, arm: ArmRecord) -> None:
    plain = arm.ranges[option]
    for state, (marker, colour) in STATES.items():
        shown = [trial for trial in arm.trials if trial.state == state]
        if shown:
            places, scores = _places(shown, option, "choices" in plain), [trial.score for trial in shown]
            style: dict[str, Any] = {"marker": marker, "color": COLOURS[colour], "label": LABELS[state], "alpha": 0.8}
            if state == "diverged":
                scores, style["transform"] = [AT_THE_BOTTOM] * len(shown), axes.get_xaxis_transform()
            axes.scatter(places, scores, **style)
    if arm.best is not None:
        best = arm.trials[arm.best]
        axes.scatter(_places([best], option, "choices" in plain), [best.score], **BEST)
    if plain.get("log"):
        low, high = float(plain["low"]), float(plain["high"])
        ticks = [low, math.sqrt(low * high), high]
        axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{tick:.2g}" for tick in ticks])  # matplotlib's own would be in LaTeX
        axes.set_xticks([], minor=True)
    axes.set_xlabel(shorten(option.removeprefix("model.")))


def _places(trials: Sequence[TrialRecord], option: str, is_choice: bool) -> list[Any]:
    return [str(trial.values[option]) if is_choice else trial.values[option] for trial in trials]
