"""Writes the generated parts of the front page and the manual, and its figures, from the study's records.

A part stands between ``<!-- name -->`` and ``<!-- /name -->``. Run ``python -m study.refresh`` after a change of
``measured.csv``, ``published.csv``, a record in ``benchmarks/records`` or a method's ``facts``.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.common import as_markdown, read_record
from ddn_lightning.names import stream_table
from ddn_lightning.report.figures.style import save_as
from ddn_lightning.reproduce.grid import read_grid
from study.ablation import TABLE_3, WEIGHTS, ablation_table
from study.beside_paper import agreement_table, cells_beside_paper, per_task_table
from study.beside_paper_figure import beside_paper_figure
from study.collection import collection_table
from study.comparisons import SMALL, TABLES, calibration_table, compared, comparison_table
from study.forgetting_split import split_table
from study.gain import gain_arms, gain_table
from study.gain_figure import gain_figure
from study.headline import headline, levels
from study.labels import label_table
from study.measured import measured_runs, measured_table
from study.method_table import method_table, reached_table
from study.paper_figures import weights_figure
from study.pretrained import pretrained_table
from study.published import memory_table

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")))
FIGURES: Mapping[str, Callable[[], Figure]] = {
    "docs/pictures/beside_paper.svg": lambda: beside_paper_figure(cells_beside_paper(measured_runs())),
    "docs/pictures/paper_weights.svg": lambda: weights_figure(measured_runs(), SMALL),
    "docs/pictures/gain.svg": lambda: gain_figure(gain_arms(measured_runs(), SMALL)),
}


def parts() -> dict[str, str]:
    """The generated parts by name."""
    runs = measured_runs()
    cells = cells_beside_paper(runs)
    return {
        "methods": method_table(),
        "reached": reached_table(),
        "either memory": memory_table(),
        "streams": stream_table(),
        "measured": measured_table(runs),
        "agreement": agreement_table(cells),
        "by task": per_task_table(cells),
        "headline": headline(runs),
        "levels": levels(runs),
        "gain": gain_table(gain_arms(runs, SMALL)),
        "calibration": calibration_table(runs),
        **{name: comparison_table(compared(runs, name)) for name in TABLES},
        "labels": label_table(runs, SMALL),
        "parts of forgetting": split_table(runs),
        "labels of table 3": ablation_table(runs, SMALL, TABLE_3),
        "weights": ablation_table(runs, SMALL, WEIGHTS),
        "pre-trained": pretrained_table(runs),
        "speed": _speed(),
        "collection, 16 x 16": _collection(),
    }


def filled(text: str, generated: dict[str, str]) -> str:
    """A text with its generated parts."""
    for name, part in generated.items():
        mark = re.escape(name)
        pattern = re.compile(rf"(?<=<!-- {mark} -->\n).*?(?=<!-- /{mark} -->)", re.DOTALL)
        replacement = f"{part.strip()}\n".replace("\\", r"\\")
        text = pattern.sub(replacement, text)
    return text


def _speed() -> str:
    """The records of costs, the long ones folded."""
    shown, *others = map(
        read_record, ("steps", "methods", "peers", "peers_tiny", "input", "growth", "checkpoints", "start_up")
    )
    return "\n\n".join([as_markdown(shown), *(_folded(record["title"], as_markdown(record)) for record in others)])


def _folded(title: str, *tables: str) -> str:
    return "\n\n".join([f"<details markdown>\n<summary>{title}</summary>", *tables, "</details>"])


def _collection() -> str:
    """All methods on the study's images, with their own settings."""
    cells = read_grid("collection_images", ROOT / "configs").cells
    return collection_table(cells, measured_runs(), *SMALL[:2])


def refresh() -> list[Path]:
    """Write the pages and the figures; returns the pages that have changed."""
    generated, changed = parts(), []
    pages = {path: path.read_text(encoding="utf-8") for path in PAGES}
    for name in generated:
        if not any(f"<!-- {name} -->" in text and f"<!-- /{name} -->" in text for text in pages.values()):
            raise SystemExit(f"some page must have the marks <!-- {name} --> and <!-- /{name} -->")
    for path, text in pages.items():
        if (new := filled(text, generated)) != text:
            path.write_text(new, encoding="utf-8")
            changed.append(path)
    for picture, draw in FIGURES.items():
        save_as(draw(), ROOT / picture)
    return changed


if __name__ == "__main__":
    for changed in refresh():
        print(changed.relative_to(ROOT))
