"""The measurements of ``ddn bench``, as plain numbers."""

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from ddn_lightning.bench.baselines import BARE, LOOPS, PLAIN, LookAheads, StepTimes, augmentations, time_loops
from ddn_lightning.bench.cost import PartTimes, clock_of, peak_memory, time_in_turns
from ddn_lightning.bench.prepared_method import PARTS, PreparedMethod, RandomImages, Workload
from ddn_lightning.distill.data_distill_net import DataDistillNet
from ddn_lightning.memory.reservoir_buffer import ReservoirBuffer
from ddn_lightning.methods.er import ER
from ddn_lightning.methods.replay_method import ReplayMethod

Report = dict[str, Any]
Section = Callable[[str, int], Callable[[], None]]  # gets a name and a number of actions; returns a callback for each

UNIT, WITH_DDN = "ER", "ER + DDN"
LOOP_STEPS, EMPTY_LOOP_STEPS, LOOP_ROUNDS = 4, 100, 2
MORE_ROUNDS = 10  # factor for actions that take microseconds
MEMORY_SIZES = (200, 50_000)
LIBRARIES, COMMAND = "import torch, lightning", "ddn --help"
STARTS = {LIBRARIES: ["-c", LIBRARIES], COMMAND: ["-m", "ddn_lightning", "--help"]}
START_ROUNDS = 1  # each takes seconds and hardly varies
AXES = {"buffer_size": (200, 5_000, 50_000), "num_classes": (10, 100, 200), "batch": (16, 32, 64)}
RANKS, RANK_STEPS, RANK_STEPS_TIMED = (1, 2), 6, 4


def without_progress(name: str, actions: int) -> Callable[[], None]:
    """No progress bar."""
    return lambda: None


def measure(
    methods: Sequence[type[ReplayMethod]],
    workload: Workload,
    rounds: int,
    with_growth: bool = False,
    section: Section = without_progress,
) -> Report:
    """Measure everything, on a CPU with one thread.

    Args:
        methods: Methods to measure, besides ER, which is the unit.
        workload: Size of a step.
        rounds: Number of timed rounds.
        with_growth: Whether to measure how costs grow with the workload.
        section: Reports the progress.
    """
    with _one_thread(workload.device):
        report: Report = {
            "machine": {"processor": _processor(workload.device), "python": platform.python_version()},
            "versions": {"torch": torch.__version__},
            "workload": {**asdict(workload), "device": str(workload.device)},
            "rounds": rounds,
        }
        report |= _steps(methods, workload, rounds, section)
        report["loops"] = _loops(workload, section)
        report["input"] = _input(workload, rounds * MORE_ROUNDS, report["steps"][UNIT]["ms"], section)
        report["start_up"] = _start_ups(section)
        if with_growth:
            report["growth"] = _growth(workload, rounds, section)
    return report


def _steps(methods: Sequence[type[ReplayMethod]], workload: Workload, rounds: int, section: Section) -> Report:
    """Steps, updates of G and parts of a step, timed in the same rounds."""
    clock = clock_of(workload.device)
    prepared, look_aheads = _prepare(methods, workload, section), LookAheads(workload)
    parts = {name: PartTimes(prepared[name].step, prepared[name].parts, clock) for name in (UNIT, WITH_DDN)}
    kinds: dict[str, dict[str, Callable[[], None]]] = {
        "steps": {name: method.step for name, method in prepared.items()},
        "updates": look_aheads.updates,
        "parts": {name: times.watch for name, times in parts.items()},
    }
    actions = {f"{kind} {name}": action for kind, named in kinds.items() for name, action in named.items()}
    for watched in parts.values():
        watched.warm_up()
    timings = time_in_turns(actions, rounds, clock, section("steps", (rounds + 1) * len(actions)))
    unit = min(timings[f"steps {UNIT}"])
    times = {name: {part: 1e3 * t.seconds.get(part, 0.0) / (rounds + 1) for part in PARTS} for name, t in parts.items()}
    report: Report = {"parts": times}
    done = section("memory", len(kinds["steps"]) + len(kinds["updates"]))
    for kind in ("steps", "updates"):
        report[kind] = {}
        for name, action in kinds[kind].items():
            seconds = timings[f"{kind} {name}"]
            cost = {"ms": 1e3 * min(seconds), "median_ms": 1e3 * median(seconds), "er_steps": min(seconds) / unit}
            report[kind][name] = cost | _peak(action, workload)
            done()
    for name, errors in look_aheads.errors().items():
        report["updates"][name] |= errors
    return report


def _prepare(methods: Sequence[type[ReplayMethod]], workload: Workload, section: Section) -> dict[str, PreparedMethod]:
    chosen: list[type[ReplayMethod]] = [ER, *(method for method in methods if method is not ER)]
    done = section("preparation", len(chosen))
    prepared = {}
    for method in chosen:
        prepared[method.__name__] = PreparedMethod(method, workload)
        if method.takes_distiller():
            prepared[f"{method.__name__} + DDN"] = PreparedMethod(method, workload, DataDistillNet())
        done()
    return prepared


def _peak(action: Callable[[], object], workload: Workload) -> dict[str, float | None]:
    peak = peak_memory(action, workload.device)
    allocated = None if peak.allocated is None else peak.allocated / 2**20
    return {"saved_mib": peak.saved / 2**20, "allocated_mib": allocated}


def _loops(workload: Workload, section: Section) -> Report:
    done, clock = section("loops", 2), clock_of(workload.device)
    full = time_loops(workload, True, LOOP_STEPS, LOOP_ROUNDS, clock)
    done()
    empty = time_loops(workload, False, EMPTY_LOOP_STEPS, LOOP_ROUNDS, clock)
    done()
    return {
        name: {
            "ms": 1e3 * min(full[name]),
            "over_bare": min(full[name]) / min(full[BARE]),
            "overhead_ms": 1e3 * (median(empty[name]) - median(empty[PLAIN])),
        }
        for name in LOOPS
    }


def _input(workload: Workload, rounds: int, er_ms: float, section: Section) -> Report:
    augment = augmentations(workload)
    memory = {f"{size:,} images": _add_and_draw(workload, size) for size in MEMORY_SIZES}
    done = section("input", (rounds + 1) * (len(augment) + len(memory)))
    timings = time_in_turns({**augment, **memory}, rounds, clock_of(workload.device), done)
    us = {name: 1e6 * min(seconds) for name, seconds in timings.items()}
    return {
        "augment_us_per_image": {name: us[name] / workload.batch for name in augment},
        "add_and_draw": {name: {"us": us[name], "er_steps": 1e-3 * us[name] / er_ms} for name in memory},
    }


def _add_and_draw(workload: Workload, buffer_size: int) -> Callable[[], object]:
    """Offers a batch to a full reservoir and draws one from its old tasks."""
    memory = ReservoirBuffer(buffer_size)
    memory.add(workload.samples(buffer_size, task=0))
    batch = workload.samples(workload.batch, task=1)

    def add_and_draw() -> None:
        memory.add(batch)
        memory[memory.draw(workload.batch, tasks=[0])]

    return add_and_draw


def _start_ups(section: Section) -> dict[str, float]:
    """Processor time to import torch and Lightning, and to show the help of ``ddn``."""

    def start(arguments: list[str]) -> None:
        command = [sys.executable, *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603

    def clock() -> float:
        times = os.times()
        return times.children_user + times.children_system

    done = section("start-up", len(STARTS) * (START_ROUNDS + 1))
    actions = {name: partial(start, arguments) for name, arguments in STARTS.items()}
    return {name: min(seconds) for name, seconds in time_in_turns(actions, START_ROUNDS, clock, done).items()}


def _growth(workload: Workload, rounds: int, section: Section) -> list[Report]:
    """Cost of a step by memory size, number of classes, batch size and, on a CPU, number of devices."""
    ranks = RANKS if workload.device.type == "cpu" else ()
    done = section("growth", 2 * (rounds + 1) * sum(map(len, AXES.values())) + 2 * len(ranks))
    report = []
    for axis, values in AXES.items():
        actions = {}
        for value in values:
            size = replace(workload, **{axis: value})  # type: ignore[arg-type]  # all are integers
            actions[f"er {value}"] = PreparedMethod(ER, size).step
            actions[f"ddn {value}"] = PreparedMethod(ER, size, DataDistillNet()).step
        timings = time_in_turns(actions, rounds, clock_of(workload.device), done)
        report += [_growth_row(axis, value, timings[f"er {value}"], timings[f"ddn {value}"]) for value in values]
    for number in ranks:
        timings = {}
        for name, distiller in (("er", None), ("ddn", DataDistillNet())):
            timings[name] = _time_ranks(workload.method(ER, distiller), workload, number)
            done()
        report.append(_growth_row("devices", number, timings["er"], timings["ddn"]))
    return report


def _growth_row(axis: str, value: int, er: list[float], ddn: list[float]) -> Report:
    return {"axis": axis, "value": value, "er_ms": 1e3 * min(er), "ddn_ms": 1e3 * min(ddn)}


def _time_ranks(method: ReplayMethod, workload: Workload, ranks: int) -> list[float]:
    """Seconds per step of rank 0 in the second task, with each batch split between ranks."""
    times = StepTimes(clock_of(workload.device), 2 * RANK_STEPS)
    strategy = "auto" if ranks == 1 else "ddp_fork"
    trainer = workload.trainer(callbacks=[times], devices=ranks, strategy=strategy)
    trainer.fit(method, RandomImages(workload, RANK_STEPS))
    return times.seconds(last=RANK_STEPS_TIMED)


@contextmanager
def _one_thread(device: torch.device) -> Iterator[None]:
    """Use one thread on a CPU, where processor time includes threads that wait."""
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _processor(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, 1 thread"
