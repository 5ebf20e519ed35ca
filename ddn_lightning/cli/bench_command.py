"""The command ``ddn bench``."""

import json
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Literal, Self

import torch
from jsonargparse import Namespace
from rich.console import Console
from rich.progress import Progress

import ddn_lightning
from ddn_lightning.bench.measure import measure
from ddn_lightning.bench.subject import Workload
from ddn_lightning.bench.tables import as_markdown
from ddn_lightning.cli.parser import CommandParser
from ddn_lightning.distill.bilevel_distiller import PRECISIONS
from ddn_lightning.errors import ConfigurationError, check_positive
from ddn_lightning.methods.replay_method import ReplayMethod

DESCRIPTION = """Measure on this machine what a step costs: each method with and without DDN, the modes of DDN's
gradient against an unrolled one, the parts of a step, the loop around it, and the input. On a CPU by the process's own
time and one thread, so that other programs hardly matter."""
DEFAULT_METHODS = ("ER", "DERPlusPlus", "CLSER", "ERACE")


def bench(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    settings = _parser().parse_args(list(arguments))
    methods = [_method(name) for name in settings.method]
    workload = _workload(settings)
    check_positive(rounds=settings.rounds)
    with BenchProgress() as progress:
        report = measure(methods, workload, settings.rounds, settings.growth, progress.section)
    print(json.dumps(report, indent=1) if settings.json else as_markdown(report), end="\n" if settings.json else "")
    return 0


class BenchProgress:
    """A bar for each thing that is measured, on the standard error stream, so that the result can be piped."""

    def __init__(self) -> None:
        self.progress = Progress(console=Console(stderr=True), transient=True)

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.progress.stop()

    def section(self, name: str, actions: int) -> Callable[[], None]:
        """Begin with something of so many actions; call what is returned after each."""
        task = self.progress.add_task(name, total=actions)
        return lambda: self.progress.advance(task)


def _method(name: str) -> type[ReplayMethod]:
    found = getattr(ddn_lightning, name, None)
    if isinstance(found, type) and issubclass(found, ReplayMethod) and not found.__abstractmethods__:
        return found
    public = [getattr(ddn_lightning, other) for other in ddn_lightning.__all__]
    methods = [m for m in public if isinstance(m, type) and issubclass(m, ReplayMethod) and not m.__abstractmethods__]
    choices = ", ".join(sorted(method.__name__ for method in methods))
    raise ConfigurationError(f"method must be one of {choices}, got {name}")


def _workload(settings: Namespace) -> Workload:
    sizes = {name: settings[name] for name in ("width", "batch", "image_size", "num_classes", "buffer_size")}
    check_positive(**sizes)
    if sizes["num_classes"] % 2:
        raise ConfigurationError(f"num_classes must be even, for two tasks, got {sizes['num_classes']}")
    if sizes["batch"] < 2:
        raise ConfigurationError(f"batch must be at least 2, for BatchNorm, got {sizes['batch']}")
    return Workload(**sizes, device=_device(settings.device), precision=settings.precision)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigurationError(f"device must be one of this machine's, such as cpu, got {name}: {reason}") from error
    return device


def _parser() -> CommandParser:
    parser = CommandParser(prog="ddn bench", description=DESCRIPTION)
    parser.add_argument("--method", type=str, nargs="+", default=list(DEFAULT_METHODS), help="Classes of methods.")
    integers = {
        "width": "Channels of ResNet-18's first stage; the paper's is 64.",
        "batch": "Incoming images per step, and as many of each draw from memory.",
        "image_size": "Height and width of the images.",
        "num_classes": "Classes of the sequence.",
        "buffer_size": "Images in memory.",
    }
    for name, text in integers.items():
        parser.add_argument(f"--{name}", type=int, default=getattr(Workload, name), help=text)
    parser.add_argument("--device", type=str, default="auto", help="Such as cuda:0. auto: a GPU if there is one.")
    parser.add_argument("--precision", type=Literal[PRECISIONS], default=Workload.precision, help="Of the Trainer.")
    parser.add_argument("--rounds", type=int, default=3, help="How often each is timed; the shortest time counts.")
    parser.add_argument("--growth", action="store_true", help="Also see what grows with what (minutes more).")
    parser.add_argument("--json", action="store_true", help="Print numbers for a program.")
    return parser
