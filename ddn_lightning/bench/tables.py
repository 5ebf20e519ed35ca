"""What was measured, as tables to read."""

from collections.abc import Sequence

from ddn_lightning.bench.loops import LOOPS
from ddn_lightning.bench.measure import Report
from ddn_lightning.bench.step_parts import PARTS


def as_markdown(report: Report) -> str:
    """All tables, with what they were measured on."""
    workload = report["workload"]
    size = workload["image_size"]
    intro = (
        f"{report['machine']['processor']}, torch {report['versions']['torch']}: ResNet-18 of width "
        f"{workload['width']}, {workload['batch']} incoming images of {size} x {size} and as many of each draw from "
        f"memory, {workload['precision']}; the shortest of {report['rounds']} interleaved rounds."
    )
    tables = [_steps(report), _updates(report), _parts(report), _loops(report), _input(report), _start_up(report)]
    if "growth" in report:
        tables.append(_growth(report))
    return "\n\n".join([intro, *tables]) + "\n"


def _steps(report: Report) -> str:
    rows = [
        [name, _1(m["ms"]), _2(m["er_steps"]), _1(m["saved_mib"]), _1(m["allocated_mib"])]
        for name, m in report["steps"].items()
    ]
    return _table(["step of", "ms", "in ER steps", "saved for backward, MiB", "peak growth, MiB"], rows)


def _updates(report: Report) -> str:
    rows = [
        [name, _1(m["ms"]), _2(m["er_steps"]), _1(m["saved_mib"]), f"{m['relative_error']:.0e}", f"{m['cosine']:.3f}"]
        for name, m in report["updates"].items()
    ]
    header = ["update of G", "ms", "in ER steps", "saved for backward, MiB", "relative error", "cosine"]
    return _table(header, rows)


def _parts(report: Report) -> str:
    overhead = report["loops"][LOOPS[2]]["overhead_ms"]
    rows = [[name, *(_1(parts[part]) for part in PARTS), _1(overhead)] for name, parts in report["parts"].items()]
    return _table(["mean ms of a step", *PARTS, "loop"], rows)


def _loops(report: Report) -> str:
    rows = [[name, _1(m["ms"]), _2(m["over_bare"]), _2(m["overhead_ms"])] for name, m in report["loops"].items()]
    return _table(["loop around ER", "ms per step", "to bare Lightning", "ms beyond plain PyTorch"], rows)


def _input(report: Report) -> str:
    augment = report["input"]["augment_us_per_image"]
    rows = [[f"augment, {name}", f"{_1(value)} per image", "-"] for name, value in augment.items()]
    memory = report["input"]["add_and_draw"]
    rows += [[f"offer and draw a batch, {n}", _1(m["us"]), f"{m['er_steps']:.4f}"] for n, m in memory.items()]
    return _table(["input", "µs", "in ER steps"], rows)


def _start_up(report: Report) -> str:
    return _table(["start-up", "s"], [[f"`{name}`", _2(value)] for name, value in report["start_up"].items()])


def _growth(report: Report) -> str:
    rows = [[g["axis"], f"{g['value']:,}", _1(g["er_ms"]), _1(g["ddn_ms"])] for g in report["growth"]]
    return _table(["what grows", "to", "ER, ms", "ER + DDN, ms"], rows)


def _1(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _2(value: float) -> str:
    return f"{value:.2f}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Words to the left, numbers to the right.

    >>> print(_table(["a", "b"], [["1", "2"]]))
    | a | b |
    |---|--:|
    | 1 | 2 |
    """
    first, *others = [f"| {' | '.join(line)} |" for line in (header, *rows)]
    return "\n".join([first, f"|---|{'--:|' * (len(header) - 1)}", *others])
