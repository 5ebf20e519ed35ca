"""The manual: it builds without a warning, leaves nothing out, and its Python runs."""

import re
from pathlib import Path

import pytest
import yaml
from documents import OWN_TESTS, PAGES, ROOT, blocks

import ddn_lightning
from ddn_lightning.report.names import METHODS

SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    mkdocs = pytest.importorskip("mkdocs.commands.build")
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        patch.chdir(ROOT)
        mkdocs.build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True))
    return folder


@pytest.mark.filterwarnings("default")  # those of the builder's packages; its own are errors, as the build is strict
def test_it_builds_without_a_warning(site: Path) -> None:
    assert (site / "index.html").is_file()
    assert len(list(site.glob("notebooks/*/index.html"))) == len(list((ROOT / "notebooks").glob("*.ipynb")))


@pytest.mark.filterwarnings("default")
def test_every_public_name_is_in_the_reference(site: Path) -> None:
    shown = " ".join(page.read_text() for page in site.glob("api/*/index.html"))
    names = [name for name in ddn_lightning.__all__ if not name.startswith("__")]
    assert [name for name in names if not re.search(rf'id="ddn_lightning\.[\w.]*\b{name}"', shown)] == []


@pytest.mark.filterwarnings("default")
def test_no_role_or_formula_is_left_as_source(site: Path) -> None:
    reference = "".join(page.read_text() for page in site.glob("api/*/index.html"))
    assert not re.search(r":(?:class|meth|func|attr|mod):", reference)
    assert "<math" in (site / "concepts" / "index.html").read_text()
    for page in PAGES:
        rendered = site / page.removeprefix("docs/").replace("index.md", "").removesuffix(".md") / "index.html"
        assert "$$" not in rendered.read_text(), page


def test_every_method_has_a_page() -> None:
    listed = [page for page in pages_of(SITE["nav"]) if page.startswith("methods/")]
    assert sorted(listed) == sorted(["methods/index.md", *(f"methods/{facts.key}.md" for facts in METHODS.values())])


def pages_of(entry: object) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    values = entry.values() if isinstance(entry, dict) else entry
    return [page for value in values for page in pages_of(value)]  # type: ignore[attr-defined]


def test_what_a_stranger_looks_for_is_two_clicks_away() -> None:
    start = set(re.findall(r"\]\(([\w/]+\.md)\)", PAGES["docs/index.md"]))
    assert {f"how_to/{page}.md" for page in ("own_method", "own_data", "take_away")} <= start
    assert start <= set(pages_of(SITE["nav"]))


@pytest.mark.filterwarnings("ignore:.*tensorboardX. has been removed")
@pytest.mark.parametrize(
    ("page", "block"),
    [
        pytest.param(page, block, id=f"{page}-{number}")
        for page, text in PAGES.items()
        if page not in OWN_TESTS
        for number, block in enumerate(blocks(text, "python"))
    ],
)
def test_its_python_runs(page: str, block: str) -> None:
    if "MNIST(" in block:
        pytest.skip("needs a download")
    exec(compile(block, page, "exec"), {"__name__": "docs"})
