"""The self-contained HTML page of any number of runs."""

import base64
import hashlib
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ddn_lightning.report.anytime import EXPLANATION as ANYTIME_NOTE
from ddn_lightning.report.anytime import anytime_groups, anytime_pictures, anytime_table
from ddn_lightning.report.figures.comparison_figures import comparison_pictures, not_compared
from ddn_lightning.report.figures.pareto import pareto_pictures
from ddn_lightning.report.figures.run_figures import Picture, pictures_of
from ddn_lightning.report.figures.style import INK, as_svg
from ddn_lightning.report.group_comparison import compare_groups
from ddn_lightning.report.page_tables import paired_table, published_of, results_table, seeds_table, settings_tables
from ddn_lightning.report.reference import Reference
from ddn_lightning.report.run_labels import method_title
from ddn_lightning.runs.recorded_run import CONFIG_FILE, RecordedRun
from ddn_lightning.runs.results import Results

MOST_DETAILED = 12  # up to this number, every run has its own figures on the page
FEW_DETAILED = 5  # beyond it, only the first few have, so that a page of hundreds takes seconds
WIDE = 7.0  # inches; wider figures have a row of their own, and a phone scrolls them instead of shrinking them
PIXELS_PER_INCH = 96  # of CSS
FIGURE_STYLE = (
    "<style>svg{color:#1b1b1b}@media screen and (prefers-color-scheme:dark){svg{color:#e9ebee}}</style>"  # as page.css
)


@dataclass(frozen=True)
class PagePicture:
    """A figure as a data URL, its size in CSS pixels, and whether a phone should scroll it."""

    name: str
    title: str
    description: str
    address: str
    width: int
    height: int
    is_wide: bool


@dataclass(frozen=True)
class RunDetails:
    """The section about one run: its result in one line, the command that repeats it, notes and figures."""

    name: str
    anchor: str
    headline: str
    command: str
    notes: Sequence[str]
    pictures: Sequence[PagePicture]


def page(runs: Sequence[RecordedRun], made_by: str, references: Sequence[Reference] = ()) -> str:
    """The whole page.

    Args:
        runs: The runs, each with a unique name.
        made_by: The command that makes the page.
        references: Published results to show beside the runs that they are comparable with.
    """
    finished = [run for run in runs if run.is_finished]
    described = [run for run in runs if run.results is not None]
    anchors = {run.name: f"run-{number}" for number, run in enumerate(described, start=1)}
    environment = page_environment()
    name = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    text: str = environment.get_template("page.html").render(
        **style_of(environment),
        **_script_of(environment),
        **_overview(finished, anchors, references),
        **_pairs(finished),
        **_within_tasks(finished),
        **_single_runs(described, anchors),
        title=f"{name}: report of ddn_lightning",
        summary=_summary(runs, finished),
        broken=[run for run in runs if not run.is_finished or run.problems],
        made_by=made_by,
        version=version("ddn-lightning"),
    )
    return text


def style_of(environment: Environment) -> dict[str, object]:
    """The style of a page, and the hash by which its security policy allows it, for ``head.html``."""
    style = _source_of(environment, "page.css")
    return {"style": Markup(style), "style_hash": _hash_of(style)}  # noqa: S704  # from this package


def _script_of(environment: Environment) -> dict[str, object]:
    script = _source_of(environment, "page.js")
    return {"script": Markup(script), "script_hash": _hash_of(script)}  # noqa: S704  # from this package


def _overview(
    finished: Sequence[RecordedRun], anchors: Mapping[str, str], references: Sequence[Reference]
) -> dict[str, object]:
    """The tables and figures of all runs."""
    comparing, comparing_problem = _draw_comparison(finished)
    return {
        "runs": results_table(finished, anchors, references),
        "groups": seeds_table(finished, references),
        "sources": sorted({found.source for found in published_of(finished, references).values() if found.source}),
        "comparing": comparing,
        "comparing_problem": comparing_problem,
        "not_compared": not_compared(finished),
    }


def _pairs(finished: Sequence[RecordedRun]) -> dict[str, object]:
    """The differences to a baseline, and what they cost."""
    comparison = compare_groups(finished)
    costs, costs_problem = draw(lambda: pareto_pictures(comparison.rows)) if comparison.has_pairs else ([], "")
    return {
        "paired": paired_table(comparison),
        "paired_note": comparison.explanation,
        "warnings": comparison.warnings,
        "left_out": comparison.left_out,
        "costs": costs,
        "costs_problem": costs_problem,
    }


def _within_tasks(finished: Sequence[RecordedRun]) -> dict[str, object]:
    """Continual evaluation."""
    within = anytime_groups(finished)
    pictures, problem = draw(lambda: anytime_pictures(within))
    return {
        "within": anytime_table(within),
        "within_note": f"{ANYTIME_NOTE} {_recorded(sum(len(group.runs) for group in within), len(finished))}",
        "within_pictures": pictures,
        "within_problem": problem,
    }


def _single_runs(described: Sequence[RecordedRun], anchors: Mapping[str, str]) -> dict[str, object]:
    """The sections about single runs, and their settings."""
    detailed = len(described) if len(described) <= MOST_DETAILED else FEW_DETAILED
    return {
        "details": [_details(run, anchors[run.name], n < detailed) for n, run in enumerate(described)],
        "detailed": detailed,
        "settings": settings_tables(described) if described else [],
    }


def rerun_command(run: RecordedRun) -> str:
    """The command that repeats a run under another name; that of a user's own program, as it was."""
    if "command" in run.config:
        return str(run.config["command"])
    config, name = str(run.folder / CONFIG_FILE), f"{run.config.get('name') or run.folder.name}-again"
    return shlex.join(["ddn", "fit", "-c", config, "--name", name])


def _summary(runs: Sequence[RecordedRun], finished: Sequence[RecordedRun]) -> str:
    """How many runs there are, and the result of the only one that is finished; several are not ranked."""
    counted = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    diverged = sum(run.results is not None and run.results.divergence is not None for run in runs)
    counted += f" ({diverged} diverged)" if diverged else ""
    if not finished:
        return f"{counted}, none of them finished."
    if len(finished) > 1:
        return f"{counted}, {len(finished)} of them finished."
    results = finished[0].results
    assert results is not None
    whole = f"{method_title(results)} on {results.dataset}: {_outcome(results)}"
    return f"{counted}, {whole}." if len(runs) == 1 else f"{counted}, 1 of them finished. {whole}."


def _recorded(number: int, total: int) -> str:
    """How many runs a section shows, if not all.

    >>> _recorded(2, 3)
    'From 2 of the 3 finished runs: those that recorded it, each seed once.'
    """
    return (
        f"From {number} of the {total} finished runs: those that recorded it, each seed once." if number < total else ""
    )


def _details(run: RecordedRun, anchor: str, with_figures: bool) -> RunDetails:
    assert run.results is not None
    pictures, problem = draw(lambda: pictures_of(run)) if with_figures else ([], "")
    notes = [*run.problems, *([problem] if problem else [])]
    if not with_figures:
        notes.append(f"Its figures: {shlex.join(['ddn', 'report', str(run.folder)])}")
    outcome = _outcome(run.results) if run.results.divergence is None else "diverged"
    headline = f"{method_title(run.results)} on {run.results.dataset}, seed {run.results.seed}, {outcome}"
    if not run.is_finished:
        headline += f" after {run.results.tasks_finished} of {len(run.results.matrix)} tasks"
    return RunDetails(run.name, anchor, headline, rerun_command(run), notes, pictures)


def _outcome(results: Results) -> str:
    where = f" ({results.acc_measured_on})" if results.measures else ""
    if results.acc is None:
        return "ACC unknown"
    forgotten = "" if results.fm is None else f", FM {results.fm:.2f} %"
    return f"ACC{where} {results.acc:.2f} %{forgotten}"


def _draw_comparison(runs: Sequence[RecordedRun]) -> tuple[list[PagePicture], str]:
    """The figures of all runs together; if that fails, of the runs without problems."""
    pictures, problem = draw(lambda: comparison_pictures(runs))
    intact = [run for run in runs if not run.problems]
    if problem and len(intact) < len(runs):
        pictures, problem = draw(lambda: comparison_pictures(intact))
        problem = problem or "of the runs that nothing is wrong with"
    return pictures, problem


def draw(draw: Callable[[], list[Picture]]) -> tuple[list[PagePicture], str]:
    """The figures, or none and the reason: inconsistent files must not prevent the page."""
    try:
        return [_on_page(picture) for picture in draw()], ""
    except Exception as error:  # damaged numbers can raise almost anything
        return [], f"the figures could not be drawn ({type(error).__name__}: {error})"


def _on_page(picture: Picture) -> PagePicture:
    """A figure as an image, isolated from the page but in its colours."""
    drawing = as_svg(picture.figure).replace(INK, "currentColor")
    drawing = re.sub(r"(<svg\b[^>]*>)", lambda found: found[1] + FIGURE_STYLE, drawing, count=1)
    width, height = (round(PIXELS_PER_INCH * length) for length in picture.figure.get_size_inches())
    address = f"data:image/svg+xml;base64,{base64.b64encode(drawing.encode()).decode()}"
    is_wide = picture.figure.get_figwidth() > WIDE
    return PagePicture(picture.name, picture.title, picture.description, address, width, height, is_wide)


def page_environment() -> Environment:
    """Jinja's environment for the templates of this package."""
    return Environment(
        loader=PackageLoader("ddn_lightning.report", "page_parts"),
        autoescape=True,  # names of folders and values in files are not trusted
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _source_of(environment: Environment, name: str) -> str:
    """The text of a template or of a file beside it."""
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


def _hash_of(text: str) -> str:
    """The hash by which a page's security policy allows a style or a script."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
