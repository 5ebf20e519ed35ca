"""The real command on a tiny network prints consistent numbers."""

import json
from contextlib import redirect_stdout
from io import StringIO

import pytest

from ddn_lightning.bench.baselines import BARE, LOOPS, PLAIN
from ddn_lightning.bench.measure import COMMAND, LIBRARIES, Report
from ddn_lightning.bench.prepared_method import PARTS
from ddn_lightning.cli import main
from ddn_lightning.cli.bench_command import as_markdown
from ddn_lightning.names import METHODS

TINY = ["--width", "2", "--image_size", "8", "--batch", "4", "--rounds", "1", "--buffer_size", "20"]

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture(scope="module")
def report() -> Report:
    """The JSON output of the command. It starts Python only, as our imports take seconds."""
    printed = StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.setattr("ddn_lightning.bench.measure.STARTS", {"python": ["-c", "sum(range(10**6))"]})
        assert main(["bench", *TINY, "--method", "ICaRL", "ERACE", "--precision", "bf16-mixed", "--json"]) == 0
    found: Report = json.loads(printed.getvalue())
    return found


def test_a_real_run_gives_consistent_numbers(report: Report) -> None:
    assert report["workload"] == {
        "width": 2,
        "batch": 4,
        "image_size": 8,
        "num_classes": 10,
        "buffer_size": 20,
        "device": "cpu",
        "precision": "bf16-mixed",
    }
    assert list(report["steps"]) == ["ER", "ER + DDN", "ICaRL", "ERACE", "ERACE + DDN"]  # ICaRL replays no labels
    check_costs(report)
    check_loops(report)
    assert 0 < report["start_up"]["python"] < 10


def test_the_tables_show_those_numbers(
    report: Report, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddn_lightning.cli.bench_command.measure", lambda *_: report)
    assert main(["bench"]) == 0
    intro, *tables = capsys.readouterr().out.strip().split("\n\n")
    assert "ResNet-18 of width 2, 4 incoming images of 8 x 8" in intro
    assert "bf16-mixed; the shortest of 1 interleaved rounds" in intro
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for table in tables for line in table.splitlines()]
    shown = {row[0]: row[1:] for row in reversed(rows)}  # the first of a name
    for name, measured in report["steps"].items():
        assert shown[name][:2] == [f"{measured['ms']:.1f}", f"{measured['er_steps']:.2f}"]
    assert shown["exact"][3] == f"{report['updates']['exact']['relative_error']:.0e}"
    assert shown["bare Lightning"][1] == "1.00"
    assert shown["`python`"] == [f"{report['start_up']['python']:.2f}"]
    assert "what grows" not in shown


def test_all_stands_for_every_method(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[str] = []

    def measure(methods: list[type], *_: object) -> Report:
        chosen.extend(method.__name__ for method in methods)
        return report

    monkeypatch.setattr("ddn_lightning.cli.bench_command.measure", measure)
    assert main(["bench", "--method", "all"]) == 0
    assert chosen == sorted(METHODS)


@pytest.mark.slow
def test_growth_and_start_up_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *TINY, "--method", "ER", "--growth", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    check_costs(report)
    assert 1 < report["start_up"][LIBRARIES] < report["start_up"][COMMAND]
    values: dict[str, list[int]] = {}
    for grown in report["growth"]:
        assert 0 < grown["er_ms"] < grown["ddn_ms"]
        values.setdefault(grown["axis"], []).append(grown["value"])
    assert list(values) == ["buffer_size", "num_classes", "batch", "devices"]
    assert all(found == sorted(found) and len(found) > 1 for found in values.values())
    assert "| devices | 2 |" in as_markdown(report)


def check_costs(report: Report) -> None:
    """Units are consistent, parts add up to the whole, and more work costs more."""
    er, ddn = report["steps"]["ER"], report["steps"]["ER + DDN"]
    assert er["er_steps"] == 1
    for measured in (*report["steps"].values(), *report["updates"].values()):
        assert 0 < measured["ms"] <= measured["median_ms"]
        assert measured["er_steps"] == pytest.approx(measured["ms"] / er["ms"])
        assert measured["saved_mib"] > 0
    assert ddn["ms"] > er["ms"] + 0.5 * report["updates"]["exact"]["ms"]
    for name, parts in report["parts"].items():
        assert list(parts) == list(PARTS)
        assert (parts["meta-update"] > 0) == (name == "ER + DDN")
        assert sum(parts.values()) > 0.5 * report["steps"][name]["ms"]  # timed at another moment
    updates = report["updates"]
    assert updates["exact"]["relative_error"] < 1e-4 < updates["head"]["relative_error"]
    assert updates["unrolled"]["relative_error"] == 0
    assert updates["unrolled"]["saved_mib"] > updates["exact"]["saved_mib"]


def check_loops(report: Report) -> None:
    loops = report["loops"]
    assert list(loops) == list(LOOPS)
    assert loops[BARE]["over_bare"] == 1
    assert loops[PLAIN]["overhead_ms"] == 0
    assert all(loops[name]["overhead_ms"] > 0 for name in LOOPS if name != PLAIN)
    memory = report["input"]["add_and_draw"].values()
    assert all(m["er_steps"] == pytest.approx(m["us"] / 1e3 / report["steps"]["ER"]["ms"]) for m in memory)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "Replay"], "method must be one of AGEM, BiC, CLSER, DER, DERPlusPlus, ER,"),
        (["--method", "ReplayMethod"], "got ReplayMethod"),
        (["--device", "abacus"], "device must be one of this machine's, such as cpu, got abacus"),
        (["--width", "0"], "width must be positive, got 0"),
        (["--rounds", "0"], "rounds must be positive, got 0"),
        (["--num_classes", "7"], "num_classes must be even, for two tasks, got 7"),
        (["--batch", "1"], "batch must be at least 2"),
        (["--precision", "8-bit"], "(see 'ddn bench --help')"),
    ],
)
def test_errors_are_named_in_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
