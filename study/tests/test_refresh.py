"""The generated parts of the manual are those of the records."""

import re
from pathlib import Path

from matplotlib.figure import Figure

from study.refresh import FIGURES, PAGES, ROOT, filled, parts


def test_every_page_has_its_generated_parts_as_they_are() -> None:
    generated = parts()
    pages = [path.read_text() for path in PAGES]
    for name, part in generated.items():
        (page,) = [page for page in pages if f"<!-- /{name} -->" in page]
        assert filled(page, generated) == page, name
        assert filled(page.replace(part.strip(), "older"), generated) == page, name


def test_every_figure_is_drawn_from_the_records() -> None:
    for path, draw in FIGURES.items():
        drawn = (ROOT / path).read_text()
        assert [label for label in labels_of(draw()) if f"<!-- {label} -->" not in drawn] == []


def labels_of(figure: Figure) -> list[str]:
    panels = [text.get_text() for panel in figure.axes for text in (*panel.texts, panel.title)]
    legend = [text.get_text() for legend in figure.legends for text in legend.texts]
    return [label for label in (*panels, *legend) if label]


def test_contributors_are_told_how_to_write_them() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert re.findall(r"^python -m (study\.\S+)$", text, re.M) == ["study.refresh"]
    assert Path(ROOT / "study/refresh.py").is_file()
