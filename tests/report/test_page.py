"""``ddn report`` as a user calls it; ``test_page_in_browser`` checks the looks."""

import base64
import json
import re
import shutil
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from odd_names import EVIL

from ddn_lightning.cli import main
from ddn_lightning.cli.report_command import read_runs
from ddn_lightning.report import page as page_module
from ddn_lightning.runs.recorded_run import read_run


class Elements(HTMLParser):
    """Every start tag with its attributes, and all text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.found if name == tag]


@pytest.fixture(scope="module")
def report_page(report_file: Path) -> str:
    return report_file.read_text()


def test_the_page_has_results_published_numbers_and_rerun_commands(report_page: str, recorded_runs: Path) -> None:
    page = Elements(report_page)
    run = read_run(recorded_runs / "ddn")
    assert run.results is not None
    for number in (run.results.acc, run.results.fm, run.results.aaa):
        assert f"{number:.2f}" in page.text
    assert re.search(r"ddn fit -c \S+/runs/ddn/config.yaml --name ddn-again", page.text)
    assert "8 runs, 5 of them finished." in page.text
    assert all(number in page.text for number in ("36.05", "49.99"))  # published
    assert run.results.versions["torch"] in page.text
    assert "seed_everything" in page.text
    assert "ms, evaluation included" in page.text


def test_a_published_result_stands_beside_runs_with_its_settings_only(report_page: str) -> None:
    table = report_page.partition("Results of each run")[2].partition("</table>")[0]
    rows = {re.findall("data-key=.(.*?)[\"']", row)[0]: row for row in table.split("<tr>")[2:]}
    assert ">36.05<" in rows["cifar"]
    assert "36.05" not in rows["narrow"]
    assert "Published: their Table 1, beside comparable runs only." in report_page


def test_without_comparable_runs_there_are_no_columns(report_file: Path) -> None:
    reference = str(report_file.parent / "published.csv")
    assert main(["report", str(report_file.parent / "runs/narrow"), "--reference", reference]) == 0
    assert "published" not in Path("report.html").read_text().partition("</main>")[0].lower().partition("made by")[0]


def test_seeds_that_chose_are_named_on_the_page(recorded_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "draw", lambda draw: ([], ""))
    for seed in range(2):
        run = Path(shutil.copytree(recorded_runs / "er", f"runs/er{seed}", ignore=shutil.ignore_patterns("figures")))
        results = json.loads((run / "results.json").read_text()) | {"seed": seed, "chosen_on_seeds": [1, 9]}
        (run / "results.json").write_text(json.dumps(results))
    assert main(["report", "runs"]) == 0
    assert "Warning ER: seed 1 chose the settings of this group" in Elements(Path("report.html").read_text()).text


def test_a_diverged_run_is_listed_and_excluded_from_means(recorded_runs: Path) -> None:
    for seed in range(3):
        shutil.copytree(recorded_runs / "er", f"runs/er{seed}", ignore=shutil.ignore_patterns("figures", "*.npz"))
        results = json.loads((recorded_runs / "er/results.json").read_text()) | {"average_accuracy": 50.0 + seed}
        results["seed"] = seed
        if seed == 2:  # at the very end
            results |= {"status": "diverged", "reason": "loss became nan in task 5 at step 40 with lr 9: lower <lr>"}
        Path(f"runs/er{seed}/results.json").write_text(json.dumps(results))
    assert main(["report", "runs"]) == 0
    text = " ".join(Elements(Path("report.html").read_text()).text.split())
    assert "3 runs (1 diverged), 2 of them finished. Runs " in text  # none is called the highest
    assert "er2 has diverged: loss became nan in task 5 at step 40 with lr 9: lower <lr>" in text
    assert "50.50 ± 0.71 (2)" in text
    assert "52.00" not in text


def test_broken_runs_are_listed_with_the_reason(report_page: str) -> None:
    text = " ".join(Elements(report_page).text.split())
    assert "broken results.json cannot be read (JSONDecodeError" in text
    assert "stopped has learned 1 of its 5 tasks" in text
    assert "% after 1 of 5 tasks" in text
    assert "er.log is not a folder" in text


def test_untrusted_names_are_escaped_and_nothing_is_fetched(report_page: str) -> None:
    page = Elements(report_page)
    assert EVIL in page.text
    assert len(page.all("script")) == 1
    assert not any(name.startswith("on") for _, attributes in page.found for name in attributes)
    addresses = [attributes[key] for _, attributes in page.found for key in ("src", "href") if key in attributes]
    assert addresses
    assert all(address.startswith(("data:", "#")) for address in addresses)
    assert "url(" not in report_page
    assert "@import" not in report_page


def test_figures_are_complete_images_with_alternative_text(report_page: str) -> None:
    images = Elements(report_page).all("img")
    assert len(images) > 20
    for image in images:
        assert len(image["alt"]) > 20
        drawing = base64.b64decode(image["src"].partition("base64,")[2]).decode()
        root = ElementTree.fromstring(drawing)
        assert root.tag.endswith("svg")
        assert not [element for element in root.iter() if element.tag.endswith("script")]
        assert "prefers-color-scheme:dark" in drawing
        assert "#1b1b1b" not in drawing.partition("</style>")[2]


def test_headings_captions_and_identifiers_are_consistent(report_page: str) -> None:
    page = Elements(report_page)
    levels = [int(tag[1]) for tag, _ in page.found if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later - before <= 1 for before, later in pairwise(levels))
    assert len(page.all("caption")) == len(page.all("table"))
    identifiers = [attributes["id"] for _, attributes in page.found if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))
    links = [attributes["href"][1:] for attributes in page.all("a")]
    assert set(links) <= set(identifiers)


def test_settings_that_differ_are_side_by_side(report_page: str) -> None:
    table = report_page.partition("Configuration: what differs")[2].partition("</table>")[0]
    keys = re.findall(r'<th scope="row" data-key="(.*?)"', table)
    assert {"seed_everything", "name"} <= set(keys)
    assert "model.lr" not in keys
    assert "model.lr" in report_page


def test_only_runs_on_the_same_data_are_compared(recorded_runs: Path) -> None:
    for name in ("er", "ddn"):
        shutil.copytree(recorded_runs / name, f"runs/{name}")
    results = json.loads(Path("runs/ddn/results.json").read_text())
    Path("runs/ddn/results.json").write_text(json.dumps(results | {"dataset": "others"}))
    assert main(["report", "runs"]) == 0
    assert "Compared" not in Elements(Path("report.html").read_text()).text
    shutil.copytree("runs/er", "runs/again")
    assert main(["report", "runs"]) == 0
    page = Elements(Path("report.html").read_text())
    assert "Accuracy of each task over training (digits)" in page.text
    assert "Accuracy of each task over training (others)" not in page.text
    assert "Left out, because no other run has the same data: ddn." in page.text


def test_a_page_of_one_run_compares_nothing(recorded_runs: Path) -> None:
    assert main(["report", str(recorded_runs / "er")]) == 0
    page = Elements(Path("report.html").read_text())
    assert "Compared" not in page.text
    assert len(page.all("img")) == 7
    assert "1 run, ER on digits: ACC" in page.text


def test_a_page_of_unfinished_runs_only_can_be_made(recorded_runs: Path) -> None:
    Path("one").mkdir()
    Path("one/config.yaml").write_text("name: one")
    assert main(["report", "one"]) == 0
    assert "none of them finished" in Path("report.html").read_text()


def test_figures_that_cannot_be_drawn_are_reported(recorded_runs: Path) -> None:
    shutil.copytree(recorded_runs / "er", "er")
    results = json.loads(Path("er/results.json").read_text())
    Path("er/results.json").write_text(json.dumps(results | {"class_names": ["too", "few"]}))
    assert main(["report", "er"]) == 0
    assert "the figures could not be drawn (IndexError" in Path("report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nowhere"], "there is no nowhere"),
        (["empty"], "run must be a folder that ddn fit has made, or hold such folders, got empty"),
        (["file"], "run must be a folder that ddn fit has made, or hold such folders, got file"),
        (["empty", "-o", "no/page.html"], "output must be a file in an existing folder, got no/page.html"),
        (["empty", "-o", "empty"], "output must be a file in an existing folder, got empty"),
        ([], "see 'ddn report --help'"),
        (["empty", "--shut"], "--shut"),
    ],
)
def test_errors_are_one_line(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    Path("file").write_text("")
    assert main(["report", *arguments]) == 2
    message = capsys.readouterr().err
    assert expected in message
    assert len(message.splitlines()) == 1


def test_open_starts_a_browser(
    recorded_runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: bool(opened.append(address)))
    assert main(["report", str(recorded_runs / "stopped"), "--open"]) == 0
    assert opened == [Path("report.html").resolve().as_uri()]
    assert "open report.html yourself" in capsys.readouterr().err


def test_linked_runs_are_found_and_loops_end(recorded_runs: Path) -> None:
    Path("runs/more").mkdir(parents=True)
    Path("runs/linked").symlink_to(recorded_runs / "er")
    Path("runs/more/loop").symlink_to(Path("runs").resolve())
    assert [run.folder.name for run in read_runs([Path("runs")])] == ["linked"]
