"""The command ``ddn bench``: options and tables."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from jsonargparse import Namespace
from rich.console import Console
from rich.progress import Progress

from ddn_lightning import methods
from ddn_lightning.bench.baselines import OURS
from ddn_lightning.bench.measure import Report, measure
from ddn_lightning.bench.prepared_method import PARTS, Workload
from ddn_lightning.cli.device import AUTO, HELP, find_device
from ddn_lightning.cli.parser import CommandParser, class_names
from ddn_lightning.errors import ConfigurationError, check_positive
from ddn_lightning.methods.replay_method import ReplayMethod
from ddn_lightning.precision import PRECISIONS

DESCRIPTION = """Measure the cost of a training step on this machine: each method with and without DDN, the modes of
DDN's gradient against an unrolled one, the parts of a step, the loop around it, and the input pipeline. What a
method does at the end of a task is not measured. On a CPU it measures process time with one thread, so that other
programs hardly matter."""
ALL = "all"
DEFAULT_METHODS = ("ER", "DERPlusPlus", "CLSER", "ERACE")


def bench(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    settings = _parser().parse_args(list(arguments))
    chosen = [_method(name) for name in (class_names("model") if settings.method == [ALL] else settings.method)]
    workload = _workload(settings)
    check_positive(rounds=settings.rounds)
    with Progress(console=Console(stderr=True), transient=True) as progress:  # stdout is for the result

        def section(name: str, actions: int) -> Callable[[], None]:
            task = progress.add_task(name, total=actions)
            return lambda: progress.advance(task)

        report = measure(chosen, workload, settings.rounds, settings.growth, section)
    print(json.dumps(report, indent=1) if settings.json else as_markdown(report))
    return 0


def _method(name: str) -> type[ReplayMethod]:
    choices = class_names("model")
    if name not in choices:
        raise ConfigurationError(f"method must be one of {', '.join(choices)}, got {name}")
    method: type[ReplayMethod] = getattr(methods, name)
    return method


def _workload(settings: Namespace) -> Workload:
    sizes = {name: settings[name] for name in ("width", "batch", "image_size", "num_classes", "buffer_size")}
    check_positive(**sizes)
    if sizes["num_classes"] % 2:
        raise ConfigurationError(f"num_classes must be even, for two tasks, got {sizes['num_classes']}")
    if sizes["batch"] < 2:
        raise ConfigurationError(f"batch must be at least 2, for BatchNorm, got {sizes['batch']}")
    return Workload(**sizes, device=find_device(settings.device), precision=settings.precision)


def _parser() -> CommandParser:
    parser = CommandParser(prog="ddn bench", description=DESCRIPTION)
    parser.add_argument("--method", type=str, nargs="+", default=list(DEFAULT_METHODS), help="Method classes, or all.")
    integers = {
        "width": "Channels of ResNet-18's first stage; the paper's is 64.",
        "batch": "Incoming images per step, and images per draw from memory.",
        "image_size": "Height and width of the images.",
        "num_classes": "Classes of the sequence.",
        "buffer_size": "Images in memory.",
    }
    for name, text in integers.items():
        parser.add_argument(f"--{name}", type=int, default=getattr(Workload, name), help=text)
    parser.add_argument("--device", type=str, default=AUTO, help=HELP)
    parser.add_argument("--precision", type=Literal[PRECISIONS], default=Workload.precision, help="Trainer precision.")
    parser.add_argument("--rounds", type=int, default=3, help="Number of timings, of which the shortest counts.")
    parser.add_argument("--growth", action="store_true", help="Also measure scaling with each size (minutes more).")
    parser.add_argument("--json", action="store_true", help="Print JSON instead of tables.")
    return parser


def as_markdown(report: Report) -> str:
    """All tables, below a line about the machine and the workload."""
    workload = report["workload"]
    size = workload["image_size"]
    intro = (
        f"{report['machine']['processor']}, torch {report['versions']['torch']}: ResNet-18 of width "
        f"{workload['width']}, {workload['batch']} incoming images of {size} x {size} and as many of each draw from "
        f"memory, {workload['precision']}; the shortest of {report['rounds']} interleaved rounds."
    )
    return "\n\n".join([intro, *_costs(report), *_loop_tables(report), *_other_tables(report)])


def _costs(report: Report) -> list[str]:
    header = ("ms", "in ER steps", "saved for backward, MiB")
    formats = {"ms": ".1f", "er_steps": ".2f", "saved_mib": ".1f"}
    steps = _rows(report["steps"], {**formats, "allocated_mib": ".1f"})
    updates = _rows(report["updates"], {**formats, "relative_error": ".0e", "cosine": ".3f"})
    return [
        _table(["step of", *header, "peak growth, MiB"], steps),
        _table(["update of G", *header, "relative error", "cosine"], updates),
    ]


def _loop_tables(report: Report) -> list[str]:
    loop = report["loops"][OURS]["overhead_ms"]
    parts = {name: {**parts, "loop": loop} for name, parts in report["parts"].items()}
    part_rows = _rows(parts, dict.fromkeys([*PARTS, "loop"], ".1f"))
    loop_rows = _rows(report["loops"], {"ms": ".1f", "over_bare": ".2f", "overhead_ms": ".2f"})
    return [
        _table(["mean ms of a step", *PARTS, "loop"], part_rows),
        _table(["loop around ER", "ms per step", "to bare Lightning", "ms beyond plain PyTorch"], loop_rows),
    ]


def _other_tables(report: Report) -> list[str]:
    augment, memory = report["input"]["augment_us_per_image"], report["input"]["add_and_draw"]
    rows = [[f"augment, {name}", f"{us:.1f} per image", "-"] for name, us in augment.items()]
    rows += [[f"offer and draw a batch, {n}", f"{m['us']:.1f}", f"{m['er_steps']:.4f}"] for n, m in memory.items()]
    start_up = [[f"`{name}`", f"{value:.2f}"] for name, value in report["start_up"].items()]
    tables = [_table(["input", "µs", "in ER steps"], rows), _table(["start-up", "s"], start_up)]
    if "growth" in report:
        rows = [[g["axis"], f"{g['value']:,}", f"{g['er_ms']:.1f}", f"{g['ddn_ms']:.1f}"] for g in report["growth"]]
        tables.append(_table(["what grows", "to", "ER, ms", "ER + DDN, ms"], rows))
    return tables


def _rows(numbers: Mapping[str, Mapping[str, float | None]], formats: Mapping[str, str]) -> list[list[str]]:
    """A row per name with its formatted numbers, one column per format.

    >>> _rows({"ER": {"ms": 1.234, "mib": None}}, {"ms": ".1f", "mib": ".1f"})
    [['ER', '1.2', '-']]
    """
    shown = {name: [(found[key], form) for key, form in formats.items()] for name, found in numbers.items()}
    return [[name, *("-" if v is None else format(v, form) for v, form in row)] for name, row in shown.items()]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table: first column left-aligned, the others right-aligned.

    >>> print(_table(["a", "b"], [["1", "2"]]))
    | a | b |
    |---|--:|
    | 1 | 2 |
    """
    first, *others = [f"| {' | '.join(line)} |" for line in (header, *rows)]
    return "\n".join([first, f"|---|{'--:|' * (len(header) - 1)}", *others])
