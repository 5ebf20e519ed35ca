"""All that ``ddn bench`` measures, as plain numbers."""

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ddn_lightning.bench import growth, pipeline, start_up
from ddn_lightning.bench.look_aheads import LookAheads, distances
from ddn_lightning.bench.loops import LOOPS, time_loops
from ddn_lightning.bench.peak_memory import peak_memory
from ddn_lightning.bench.step_parts import StepParts
from ddn_lightning.bench.stopwatch import Timing, clock_of, interleaved
from ddn_lightning.bench.subject import Subject, Workload
from ddn_lightning.distill.data_distill_net import DataDistillNet
from ddn_lightning.methods.er import ER
from ddn_lightning.methods.replay_method import ReplayMethod

Report = dict[str, Any]
Section = Callable[[str, int], Callable[[], None]]  # announces something of so many actions; what it returns counts one

UNIT, WITH_DDN = "ER", "ER + DDN"
LOOP_STEPS, EMPTY_LOOP_STEPS, LOOP_ROUNDS = 4, 100, 2
START_ROUNDS = 1  # a start takes seconds, and hardly varies
MORE_ROUNDS = 10  # of what takes microseconds, for each of the others


def unseen(name: str, actions: int) -> Callable[[], None]:
    """No progress bar."""
    return lambda: None


def measure(
    methods: Sequence[type[ReplayMethod]],
    workload: Workload,
    rounds: int,
    with_growth: bool = False,
    section: Section = unseen,
) -> Report:
    """Measure everything, on a CPU by one thread.

    Args:
        methods: Whose steps; ER, the unit, is always among them.
        workload: What the steps work on.
        rounds: How often each is timed.
        with_growth: Whether to see what grows with what.
        section: Shows the progress.
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
    """Steps, updates of G and parts of a step, all within the same rounds."""
    clock = clock_of(workload.device)
    subjects, modes = _subjects(methods, workload, section), LookAheads(workload)
    parts = {name: StepParts(subjects[name], clock) for name in (UNIT, WITH_DDN)}
    kinds: dict[str, dict[str, Callable[[], None]]] = {
        "steps": {name: subject.step for name, subject in subjects.items()},
        "updates": modes.updates,
        "parts": {name: part.watch_step for name, part in parts.items()},
    }
    actions = {f"{kind} {name}": action for kind, named in kinds.items() for name, action in named.items()}
    timings = interleaved(actions, rounds, clock, section("steps", (rounds + 1) * len(actions)))
    unit = timings[f"steps {UNIT}"]
    report: Report = {"parts": {name: _milliseconds(part.seconds, rounds + 1) for name, part in parts.items()}}
    done = section("memory", len(subjects) + len(modes.updates))
    for kind in ("steps", "updates"):
        report[kind] = {}
        for name, action in kinds[kind].items():
            report[kind][name] = _cost(timings[f"{kind} {name}"], unit) | _peak(action, workload)
            done()
    for name, errors in distances(modes.unrolled).items():
        report["updates"][name] |= errors
    return report


def _growth(workload: Workload, rounds: int, section: Section) -> list[Report]:
    done = section("growth", growth.number_of_actions(rounds))
    grown = growth.growth(workload, rounds, clock_of(workload.device), done)
    return [{"axis": g.axis, "value": g.value, "er_ms": _ms(g.er), "ddn_ms": _ms(g.ddn)} for g in grown]


def _subjects(methods: Sequence[type[ReplayMethod]], workload: Workload, section: Section) -> dict[str, Subject]:
    chosen: list[type[ReplayMethod]] = [ER, *(method for method in methods if method is not ER)]
    done = section("preparation", len(chosen))
    subjects = {}
    for method in chosen:
        subjects[method.__name__] = Subject(method, workload)
        if method.memory_draws:
            subjects[f"{method.__name__} + DDN"] = Subject(method, workload, DataDistillNet())
        done()
    return subjects


def _ms(timing: Timing) -> float:
    return 1e3 * timing.best


def _cost(timing: Timing, unit: Timing) -> dict[str, float]:
    return {"ms": _ms(timing), "median_ms": 1e3 * timing.median, "er_steps": timing.over(unit)}


def _peak(action: Callable[[], object], workload: Workload) -> dict[str, float | None]:
    peak = peak_memory(action, workload.device)
    allocated = None if peak.allocated is None else peak.allocated / 2**20
    return {"saved_mib": peak.saved / 2**20, "allocated_mib": allocated}


def _milliseconds(seconds: Mapping[str, float], times: int) -> dict[str, float]:
    return {name: 1e3 * value / times for name, value in seconds.items()}


def _loops(workload: Workload, section: Section) -> Report:
    done = section("loops", 2)
    full = time_loops(workload, True, LOOP_STEPS, LOOP_ROUNDS)
    done()
    empty = time_loops(workload, False, EMPTY_LOOP_STEPS, LOOP_ROUNDS)
    done()
    plain, bare, _ = LOOPS
    return {
        name: {
            "ms": _ms(full[name]),
            "over_bare": full[name].over(full[bare]),
            "overhead_ms": 1e3 * (empty[name].median - empty[plain].median),
        }
        for name in LOOPS
    }


def _input(workload: Workload, rounds: int, er_ms: float, section: Section) -> Report:
    augment, memory = pipeline.augmentations(workload), pipeline.memories(workload)
    done = section("input", (rounds + 1) * (len(augment) + len(memory)))
    timings = interleaved({**augment, **memory}, rounds, clock_of(workload.device), done)
    return {
        "augment_us_per_image": {name: 1e6 * timings[name].best / workload.batch for name in augment},
        "add_and_draw": {n: {"us": 1e6 * timings[n].best, "er_steps": _ms(timings[n]) / er_ms} for n in memory},
    }


def _start_ups(section: Section) -> dict[str, float]:
    done = section("start-up", 1)
    timings = start_up.time_start_ups(START_ROUNDS)
    done()
    return {name: timing.best for name, timing in timings.items()}


@contextmanager
def _one_thread(device: torch.device) -> Iterator[None]:
    """On a CPU the time of a process is that of all its threads, which wait for each other."""
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
