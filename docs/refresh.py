"""Writes the generated parts of the front page and the manual, and its figures, from the records of the package.

A part stands between ``<!-- name -->`` and ``<!-- /name -->``. Run ``python docs/refresh.py`` after a change of
``measured.csv``, ``published.csv``, a record in ``benchmarks/records`` or a method's ``facts``.
"""

import re
from pathlib import Path

from benchmarks.common import as_markdown, read_record
from ddn_lightning.names import stream_table
from ddn_lightning.report import collection_table
from ddn_lightning.report.ablation import TABLE_3, WEIGHTS, ablation_table
from ddn_lightning.report.beside_paper import agreement_table, cells_beside_paper, per_task_table
from ddn_lightning.report.figures.beside_paper import beside_paper_figure
from ddn_lightning.report.figures.gain import gain_figure
from ddn_lightning.report.figures.style import save_as
from ddn_lightning.report.forgetting_split import split_table
from ddn_lightning.report.gain import gain_arms, gain_table
from ddn_lightning.report.labels import label_table
from ddn_lightning.report.measured import measured_runs, measured_table
from ddn_lightning.report.method_table import method_list, method_table
from ddn_lightning.report.published import memory_table
from ddn_lightning.reproduce.gpu_hours import cost_table
from ddn_lightning.reproduce.plan import COLLECTION, table

ROOT = Path(__file__).parents[1]
SMALL = ("cifar10@16", "ResNet18 width 16", "online", 200)  # the test bed of the study


def parts() -> dict[str, str]:
    """The generated parts by name."""
    runs = measured_runs()
    cells = cells_beside_paper(runs)
    return {
        "methods": method_table(),
        "list of methods": method_list(),
        "either memory": memory_table(),
        "streams": stream_table(),
        "measured": measured_table(runs),
        "agreement": agreement_table(cells),
        "by task": per_task_table(cells),
        "gain": gain_table(gain_arms(runs, SMALL)),
        "labels": label_table(runs, SMALL),
        "parts of forgetting": split_table(runs),
        "labels of table 3": ablation_table(runs, SMALL, TABLE_3),
        "weights": ablation_table(runs, SMALL, WEIGHTS),
        "not reached": cost_table(),
        "speed": _speed(),
        "collection, 16 x 16": _collection(),
    }


def filled(text: str, generated: dict[str, str]) -> str:
    """A text with its generated parts."""
    for name, part in generated.items():
        mark = re.escape(name)
        pattern = re.compile(rf"(?<=<!-- {mark} -->\n).*?(?=<!-- /{mark} -->)", re.DOTALL)
        text = pattern.sub(lambda _, part=part: f"{part.strip()}\n", text)
    return text


def _speed() -> str:
    """The records of costs, the long ones folded."""
    shown, *others = map(read_record, ("steps", "methods", "peers", "peers_tiny", "input", "growth", "start_up"))
    return "\n\n".join([as_markdown(shown), *(_folded(record["title"], as_markdown(record)) for record in others)])


def _folded(title: str, *tables: str) -> str:
    return "\n\n".join([f"<details markdown>\n<summary>{title}</summary>", *tables, "</details>"])


def _collection() -> str:
    """All methods on the study's images, with their own settings."""
    cells = [target.cell for target in table(COLLECTION) if target.cell.data == "image_folder"]
    results = collection_table.results_of(cells, measured_runs(), *SMALL[:2])
    return collection_table.as_markdown(collection_table.collect(list(results), results))


if __name__ == "__main__":
    generated = parts()
    pages = {path: path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *ROOT.glob("docs/**/*.md"))}
    for name in generated:
        if not any(f"<!-- {name} -->" in text and f"<!-- /{name} -->" in text for text in pages.values()):
            raise SystemExit(f"some page must have the marks <!-- {name} --> and <!-- /{name} -->")
    for path, text in pages.items():
        if (new := filled(text, generated)) != text:
            path.write_text(new, encoding="utf-8")
            print(path.relative_to(ROOT))
    runs = measured_runs()
    save_as(beside_paper_figure(cells_beside_paper(runs)), ROOT / "docs/pictures/beside_paper.svg")
    save_as(gain_figure(gain_arms(runs, SMALL)), ROOT / "docs/pictures/gain.svg")
