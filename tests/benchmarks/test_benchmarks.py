"""The scripts of ``benchmarks/`` on tiny work, and their counts on modules whose cost is known."""

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from documents import TEXT, commands
from every_method import METHODS

from benchmarks import checkpoints, common, growth, input, peers, start_up, steps  # noqa: A004
from benchmarks.common import PreparedMethod, Workload, counts, interleaved
from ddn_lightning import NCM, GDumb, ReplayMethod

TINY = Workload(width=2, batch=4, image_size=8, buffer_size=20)
OPTIONS = ["--width=2", "--batch=4", "--image_size=8", "--buffer_size=20", "--rounds=2"]
MIB = 2**18  # float32 numbers


class Clock:
    """Processor time that only moves when told to."""

    now = 0.0

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("time.process_time", lambda: clock.now)
    return clock


def test_operations_are_counted_without_views_and_allocations() -> None:
    layer, images = torch.nn.Linear(16, 4, bias=False), torch.randn(8, 16)

    def action() -> None:
        torch.empty(8, 4).copy_(layer(images).view(4, 8).t().contiguous().relu())  # matmul, clone, relu, copy

    found = counts(action)
    assert found["GFLOP"] == 2 * 8 * 16 * 4 / 1e9
    assert found["operations"] == 4


def test_the_peak_is_that_of_the_memory_held_at_once() -> None:
    def both() -> None:
        one, other = torch.ones(MIB), torch.ones(MIB)
        del one, other

    def one_after_the_other() -> None:
        torch.ones(MIB)
        torch.ones(MIB)

    assert counts(both)["peak growth, MiB"] == pytest.approx(2, abs=0.01)
    assert counts(one_after_the_other)["peak growth, MiB"] == pytest.approx(1, abs=0.01)


def test_actions_take_turns_and_are_timed_per_call(clock: Clock) -> None:
    order: list[str] = []
    actions = {"a": lambda: order.append("a") or clock.wait(1), "b": lambda: order.append("b") or clock.wait(3)}
    assert interleaved(actions, rounds=2, number=2) == {"a": [1, 1], "b": [3, 3]}
    assert "".join(order) == 2 * "aaaabbbb"  # two calls of each are not timed


def test_costs_are_ratios_to_er(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "interleaved", lambda *_: {"ER": [1.0, 2.0, 4.0], "ER + DDN": [3.0, 8.0, 8.0]})
    prepared = steps.prepare(["ER"], ["exact"], TINY)
    er, ddn = steps.measure(prepared, rounds=3, number=1)
    assert (er["ms"], ddn["ms"], ddn["in ER steps"], ddn["median"]) == (1000, 3000, 3, 3)


def test_a_step_with_ddn_takes_19_or_10_passes_to_the_six_of_er() -> None:
    """Passes of a batch through the network, of which a backward pass counts as two."""
    prepared = steps.prepare(["ER"], ["hard", "exact", "delayed"], Workload(width=8, batch=8, image_size=16))
    prepared["ER + DDN (delayed)"].step()  # it learns from two steps
    flop = {name: float(counts(method.step)["GFLOP"]) for name, method in prepared.items()}
    ratios = {name: flop[name] / flop["ER"] for name in flop}
    assert ratios["ER + hard draw"] == pytest.approx(9 / 6, rel=0.01)
    assert ratios["ER + DDN"] == pytest.approx(19 / 6, rel=0.03)
    assert ratios["ER + DDN (delayed)"] == pytest.approx(10 / 6, rel=0.03)


@pytest.mark.parametrize(("plug_in", "most"), [("exact", 1_800), ("delayed", 1_100)])
def test_a_step_with_ddn_launches_few_operations(plug_in: str, most: int) -> None:
    """What a GPU waits for: ER has 522, on ResNet-18 of any width."""
    method = steps.prepare(["ER"], [plug_in], TINY)[steps.contender_name("ER", plug_in)]
    method.step()
    assert counts(method.step)["operations"] <= most


def run(module: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path, *options: str) -> dict[str, Any]:
    """The record of a script, whose tables are printed."""
    monkeypatch.setattr(sys, "argv", [str(module.__file__), *OPTIONS, "--json", str(folder / "record.json"), *options])
    module.main()
    record: dict[str, Any] = json.loads((folder / "record.json").read_text())
    assert record["workload"] == {"width": 2, "batch": 4, "image_size": 8, "num_classes": 10, "num_tasks": 2} | {
        "buffer_size": 20
    }
    return record


def columns(record: dict[str, Any], first: str) -> dict[str, dict[str, float]]:
    """The rows of all tables, by the cell of the column ``first``."""
    return {str(row[first]): row for rows in record["tables"].values() for row in rows if first in row}


def test_steps_are_recorded_and_printed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = run(steps, monkeypatch, tmp_path, "--methods", "ICaRL", "ERACE", "--plug_ins", "none", "exact")
    rows = columns(record, "step of")
    assert list(rows) == ["ER", "ICaRL", "ERACE", "ERACE + DDN"]  # ICaRL replays no labels
    assert rows["ER"]["in ER steps"] == rows["ER"]["FLOP in ER steps"] == 1
    assert rows["ERACE + DDN"]["operations"] > 2 * rows["ERACE"]["operations"] > 0
    assert record["command"].startswith("python -m benchmarks.steps --width=2")
    assert common.as_markdown(record) == capsys.readouterr().out.strip()


@pytest.mark.parametrize("command", [c for c in commands(TEXT) if c.startswith("python -m benchmarks")])
def test_the_commands_of_the_manual_are_understood(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module, *options = command.split()[2:]
    monkeypatch.setattr(sys, "argv", [module, *options, "--help"])
    with pytest.raises(SystemExit, match="0"):
        importlib.import_module(module).main()
    help_text = capsys.readouterr().out.split()
    assert [option for option in options if option.startswith("--") and option not in help_text] == []


def test_the_profile_of_a_step_names_operations(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["steps", *OPTIONS, "--plug_ins", "none", "--profile"])
    steps.main()
    assert "aten::convolution_backward" in capsys.readouterr().out


def test_input_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = columns(run(input, monkeypatch, tmp_path), "action")
    assert len(rows) == 4
    for row in rows.values():
        assert row["images per second"] == pytest.approx(1e6 / row["µs an image"], rel=0.01)


def test_growth_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    record = run(growth, monkeypatch, tmp_path, "--slots", "20", "40", "--tasks", "2", "--steps", "12")
    assert list(columns(record, "slots")) == ["20", "40"]
    assert 0 < columns(record, "tasks")["2"]["evaluation, %"] < 100
    assert all(row["% of training"] > 0 for row in columns(record, "BatchNorm statistics").values())


def test_the_time_of_a_function_is_watched(clock: Clock) -> None:
    seconds = growth.watch(clock, "wait")
    clock.wait(2)
    clock.wait(3)
    assert seconds == [2, 3]


def test_start_up_is_measured_in_processor_time_of_children(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    work = "sum(range(3 * 10**6))"
    starts = {start_up.LIBRARIES: ["-c", work], "wait": ["-c", f"import time; time.sleep(0.5); {work}"]}
    monkeypatch.setattr(start_up, "STARTS", starts)
    rows = columns(run(start_up, monkeypatch, tmp_path), "start")
    assert rows["`wait`"]["to the libraries"] == pytest.approx(1, abs=0.9)
    assert rows["`wait`"]["s"] > 0


def test_another_version_is_measured_in_turn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    (tmp_path / "before/versioned.py").write_text("sum(range(10**7))")
    starts = {
        start_up.LIBRARIES: ["-c", "sum(range(10**6))"],
        "work": ["-c", "import sys\nsum(range(10**6))\nif 'before' in sys.path[1]:\n import versioned"],
    }
    monkeypatch.setattr(start_up, "STARTS", starts)
    rows = columns(run(start_up, monkeypatch, tmp_path, "--before", str(tmp_path / "before")), "start")
    assert rows["`work`"]["to before"] < 0.5


@pytest.mark.slow
def test_the_peak_of_a_checkpoint_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    record = run(checkpoints, monkeypatch, tmp_path, "--slots", "500", "--sizes", "64", "--before", str(start_up.ROOT))
    (row,) = columns(record, "memory").values()
    assert 1 <= row["peak, in memories"] < 2
    assert row["before: CPU s"] > 0


@pytest.mark.slow
def test_a_fit_ends_at_its_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    start_up.start(["-m", "ddn_lightning", "--version"])
    with pytest.raises(start_up.subprocess.CalledProcessError):
        start_up.start(["-m", "ddn_lightning", "fit", "--no_such_option"])
    start_up.start(start_up.STARTS["ddn fit, until the first step, without an exit"])


class Pipe(list[list[float]]):
    """Keeps what is sent, and asks for the next round at once."""

    send = list.append

    def recv(self) -> None:
        pass


def test_a_loop_answers_with_the_seconds_of_each_step_of_a_round(clock: Clock) -> None:
    pipe = Pipe()
    rounds = peers.Rounds(pipe, steps=2, untimed=3)  # type: ignore[arg-type]
    for step in range(8):
        rounds.on_train_batch_start()
        clock.wait(step)
    assert pipe == [[], [3, 4], [5, 6]]


def test_loops_are_compared_with_ours() -> None:
    class Loop(Pipe):
        def send(self, _: None) -> None:
            pass

        def recv(self) -> list[float]:  # type: ignore[override]
            return self.pop(0)

    loops: Any = {peers.OURS: Loop([[2, 4, 6], [4, 8, 9]]), peers.PLAIN: Loop([[1, 2, 2], [4, 4, 4]])}
    ours, plain = peers.measure(loops, rounds=2)
    assert (ours["to ours"], ours["median"]) == (1, 1)
    assert (plain["ms"], plain["to ours"], plain["median"]) == (1000, 0.5, 0.5)


@pytest.mark.slow
def test_two_loops_take_turns_in_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = columns(run(peers, monkeypatch, tmp_path, "--tiny", "--steps=2"), "loop")
    assert list(rows) == [peers.OURS, peers.PLAIN]


@pytest.mark.parametrize(
    "method",
    [m for m in METHODS if m.__module__.startswith("ddn_lightning") and not issubclass(m, GDumb | NCM)],  # no gradient
)
def test_a_prepared_step_trains_backbone_and_head(method: type[ReplayMethod]) -> None:
    prepared = PreparedMethod(method, TINY)
    network = dict(prepared.method.network.named_parameters())
    before = {name: parameter.detach().clone() for name, parameter in network.items()}
    for _ in range(2):
        prepared.step()
    assert prepared.method.tasks_seen == 2
    learned = [name for name, parameter in network.items() if not torch.equal(before[name], parameter)]
    assert {name.partition(".")[0] for name in learned} == {"backbone", "head"}


def test_the_memory_is_full_and_mostly_of_the_first_task() -> None:
    memory = PreparedMethod(steps.methods.ER, TINY).method.memory
    assert len(memory) == 20
    assert len(memory.slots_of([0])) > 10
