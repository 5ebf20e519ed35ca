"""The whole command: with a stand-in for the runs, and once for real, killed and continued."""

import functools
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from ddn_lightning.cli import main
from ddn_lightning.cli import reproduce_command as command
from ddn_lightning.reproduce.executor import Event, ProcessExecutor
from ddn_lightning.reproduce.grid import Cell, read_grid, select
from ddn_lightning.reproduce.plan import Options, Run, plan
from ddn_lightning.reproduce.presets import read_presets
from ddn_lightning.reproduce.progress import PlanProgress

CONFIGS = Path(__file__).parents[2] / "configs"
STAND_IN = (sys.executable, str(Path(__file__).parents[1] / "reproduce/stand_in.py"))
RUNS = Path("runs")
DIGITS = ("digits", "--methods", "er", "--plugins", "none", "ddn", "--seeds", "1", "2")


def reproduce(*arguments: str) -> int:
    return main(["reproduce", *arguments, "--configs", str(CONFIGS)])


def wait_for(condition: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "ProcessExecutor", functools.partial(ProcessExecutor, program=STAND_IN))


@pytest.mark.usefixtures("stand_in")
def test_the_result_and_nothing_else_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce(*DIGITS) == 0
    printed = capsys.readouterr()
    arguments = shlex.join([*DIGITS, "--configs", str(CONFIGS)])
    first, blank, _, _, *rows = printed.out.splitlines()
    assert (first, blank) == (f"`ddn reproduce {arguments}`", "")
    assert [row.split(" | ")[3:5] for row in rows] == [["ER", "41.50 ± 0.71 (2)"], ["ER + DDN", "41.50 ± 0.71 (2)"]]
    assert "4 of 4 runs done: finished offline-digits-100-er-ddn-seed2" in printed.err


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("options", [("--format", "json"), ("-o", "table.json"), ("-o", "table", "--format", "json")])
def test_the_format_is_an_option_or_follows_the_suffix(
    options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert reproduce(*DIGITS, *options) == 0
    printed = capsys.readouterr().out
    text = Path(options[1]).read_text() if options[0] == "-o" else printed
    assert [row["plugin"] for row in json.loads(text)] == ["none", "ddn"]
    assert options[0] == "--format" or not printed


@pytest.mark.usefixtures("stand_in")
def test_a_plan_of_the_user_is_run_beside_published_results(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.yaml").write_text("seeds: [1, 2]\ncells: [{setting: offline, data: digits, method: [er, derpp]}]")
    Path("published.csv").write_text("method,plugin,data,buffer_size,acc,fm,source\nER,none,digits,100,40,,them\n")
    assert reproduce("mine.yaml", "--reference", "published.csv") == 0
    lines = capsys.readouterr().out.splitlines()
    *_, header, _, er, derpp = ([cell.strip() for cell in line.split("|")] for line in lines)
    assert header[5:10] == ["ACC ↑", "published", "Δ", "FM ↓", "published"]
    assert er[4:11] == ["ER", "41.50 ± 0.71 (2)", "40.00", "+1.50", "48.50 ± 0.71 (2)", "-", "-"]
    assert er[-2] == "them"
    assert derpp[4:6] == ["DER++", "41.50 ± 0.71 (2)"]


def test_a_dry_run_is_a_table_no_wider_than_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert reproduce("table1", "--methods", "er", "--dry-run") == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[1].split()[1] == "CPU"
    assert max(map(len, lines)) <= 60
    assert "120" in lines[-2]  # runs of all cells
    assert "add --measure" in printed.err
    assert not RUNS.exists()


@pytest.mark.usefixtures("stand_in")
def test_a_dry_run_knows_the_cost_of_finished_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce(*DIGITS[:-1]) == 0  # the first seed
    capsys.readouterr()
    assert reproduce(*DIGITS, "--dry-run") == 0
    cells = [[cell.strip() for cell in line.split("│")] for line in capsys.readouterr().out.splitlines()]
    assert ["0.2", "4", "2"] in [line[1:4] for line in cells]
    assert [line[1:4] for line in cells].count(["0.1", "2", "1"]) == 2  # 6 minutes each


@pytest.mark.slow
def test_a_dry_run_measures_the_cost_by_a_few_batches(capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce("digits", "--methods", "er", "--plugins", "none", "--seeds", "1", "--dry-run", "--measure") == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if " er " in line]
    assert 0 < float(row.split("│")[1]) < 0.1
    assert not RUNS.exists()


@pytest.mark.usefixtures("stand_in")
def test_a_run_that_diverged_is_listed_but_not_averaged(capsys: pytest.CaptureFixture[str]) -> None:
    RUNS.mkdir()
    (RUNS / "diverging").write_text("ddn-seed1")
    for _ in range(2):  # as a run that was executed, and as one that was found
        assert reproduce(*DIGITS) == 1
        printed = capsys.readouterr()
        *_, alone, distilled = printed.out.splitlines()
        assert alone.split(" | ")[4] == "41.50 ± 0.71 (2)"
        assert distilled.split(" | ")[4] == "42.00 (1), 1 of 2 runs, 1 diverged"
        assert "diverged: offline-digits-100-er-ddn-seed1" in printed.err
        assert "loss became nan in task 2 at step 7" in printed.err
        assert "4 of 4 runs done, 1 of them diverged" in printed.err


@pytest.mark.usefixtures("stand_in")
def test_a_failed_run_is_reported_with_its_log_and_the_others_finish(capsys: pytest.CaptureFixture[str]) -> None:
    RUNS.mkdir()
    (RUNS / "poison").write_text("er-ddn-seed1")
    assert reproduce(*DIGITS) == 1
    printed = capsys.readouterr()
    (log,) = RUNS.glob("*er-ddn-seed1*.log")
    assert f"    error: poisoned\n    {log}\n" in printed.err
    assert "error: poisoned" in log.read_text()
    assert len(list(RUNS.glob("*/results.json"))) == 3
    assert "42.00 (1), 1 of 2 runs" in printed.out
    (RUNS / "poison").unlink()
    assert reproduce(*DIGITS) == 0


@pytest.mark.usefixtures("stand_in")
def test_ctrl_c_lets_the_runs_save_and_the_command_resumes(capsys: pytest.CaptureFixture[str]) -> None:
    RUNS.mkdir()
    (RUNS / "slow").write_text("offline")

    def interrupt() -> None:
        wait_for(lambda: list(RUNS.glob("*/ready")))
        os.kill(os.getpid(), signal.SIGINT)

    sender = threading.Thread(target=interrupt)
    sender.start()
    handler = signal.getsignal(signal.SIGINT)
    assert reproduce(*DIGITS) == 130
    sender.join()
    assert signal.getsignal(signal.SIGINT) == handler
    printed = capsys.readouterr()
    assert "stopping offline-digits-100-er-seed1" in printed.err
    assert "the same command resumes from here" in printed.err
    assert printed.out == ""
    assert len(list(RUNS.glob("*/checkpoints/last.ckpt"))) == 1
    (RUNS / "slow").unlink()
    assert reproduce(*DIGITS) == 0


def test_a_missing_ray_is_reported(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert reproduce(*DIGITS, "--executor", "ray") == 2
    assert 'not installed: pip install -e ".[ray]"' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("visible", "count", "devices", "jobs"),
    [
        ("", 0, (), 1),
        (None, 0, (), 1),
        (None, 2, ("0", "1"), 2),
        ("2,5", 2, ("2", "5"), 2),
        ("GPU-a,7", 1, ("GPU-a",), 1),
    ],
)
def test_there_is_a_job_for_each_gpu(
    visible: str | None, count: int, devices: tuple[str, ...], jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    if visible is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible
    executor = command.executor_of(command._parser().parse_args(["digits"]))
    assert isinstance(executor, ProcessExecutor)
    assert (executor.devices, executor.jobs) == (devices, jobs)
    assert command.executor_of(command._parser().parse_args(["digits", "--jobs", "5"])).jobs == 5


def test_on_a_terminal_there_is_a_live_table() -> None:
    cell = Cell("online", "cifar10", 200, "er", "ddn", (("model.distiller.alpha", "1"),))
    runs = [Run(cell, seed, (), RUNS / f"run-{seed}") for seed in range(4)]
    console = Console(force_terminal=True, width=120, record=True)
    with PlanProgress(runs, 1, console) as progress:
        progress.show(Event(runs[0], "started"))
        assert progress.seconds_left() is None
        progress.show(Event(runs[0], "finished", seconds=100))
        progress.show(Event(runs[1], "failed", 10, "error: none"))
        assert progress.seconds_left() == 200
        assert progress.summary() == "2 of 4 runs done, 1 of them failed, about 3 min 20 s left"
        progress.show(Event(runs[2], "diverged", 10, "loss became nan"))
        console.print(progress._table())
    shown = console.export_text()
    *_, row = [line.split("│")[4:11] for line in shown.splitlines() if "cifar10" in line]
    assert [cell.strip() for cell in row] == ["er", "ddn alpha=1", "1", "0", "1", "1", "4"]
    assert "failed after 10.0 s: run-1" in shown
    assert "diverged: run-2" in shown


def children_of(process: "subprocess.Popen[str]") -> list[int]:
    return [int(number) for number in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def matrix(path: Path) -> list[list[float | None]]:
    values: list[list[float | None]] = json.loads(path.read_text())["accuracy_matrix"]
    return values


@pytest.mark.slow
def test_a_plan_killed_half_way_resumes_with_the_same_numbers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ("digits", "--methods", "er", "--plugins", "none", "--seeds", "1", "2")
    cells = select(read_grid("digits", CONFIGS).cells, {"methods": ["er"], "plugins": ["none"]})
    planned = plan(cells, [1, 2], read_presets(CONFIGS), Options(CONFIGS, RUNS))
    first, second = (run.folder for run in planned)

    arguments = ["reproduce", *options, "--configs", str(CONFIGS)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-m", "ddn_lightning", *arguments], text=True, env=environment)
    wait_for((second / "checkpoints/last.ckpt").exists)
    (child,) = children_of(process)
    process.kill()
    os.kill(child, signal.SIGKILL)
    process.wait()
    assert (first / "results.json").exists()
    assert not (second / "results.json").exists()

    written = (first / "results.json").stat().st_mtime_ns
    os.environ["OMP_NUM_THREADS"] = "1"
    assert reproduce(*options) == 0
    assert "found offline-digits-100-er-seed1" in capsys.readouterr().err
    assert (first / "results.json").stat().st_mtime_ns == written
    assert "--ckpt_path auto" in second.with_name(f"{second.name}.log").read_text()
    for run in planned:  # as if never stopped
        assert main([*run.command(), "--runs", "elsewhere"]) == 0
        assert matrix(Path("elsewhere") / run.folder.name / "results.json") == matrix(run.folder / "results.json")
