"""The cost of a training step of each method and plug-in, to that of ER: processor time, and exact counts."""

from collections.abc import Sequence
from itertools import product
from statistics import median
from typing import Any

from torch.profiler import ProfilerActivity, profile

from benchmarks.common import PreparedMethod, Row, Workload, arguments, counts, finish, interleaved, workload_of
from ddn_lightning import methods
from ddn_lightning.core.replay_method import ReplayMethod
from ddn_lightning.distill.data_distill_net import DataDistillNet
from ddn_lightning.report.names import METHODS

ER = "ER"
MODES = ("exact", "delayed")  # of DDN's gradient
PLUG_INS = ("none", "hard", *MODES)


def contender_name(method: str, plug_in: str) -> str:
    """The name of a row.

    >>> contender_name("ER", "none"), contender_name("ER", "exact"), contender_name("ER", "delayed")
    ('ER', 'ER + DDN', 'ER + DDN (delayed)')
    """
    return method + {"none": "", "hard": " + hard draw", "exact": " + DDN"}.get(plug_in, f" + DDN ({plug_in})")


def options_of(plug_in: str) -> dict[str, Any]:
    """The arguments of a method with this plug-in."""
    if plug_in == "none":
        return {}
    return {"old_memory_weight": 1.0} if plug_in == "hard" else {"distiller": DataDistillNet(lookahead=plug_in)}


def prepare(names: Sequence[str], plug_ins: Sequence[str], workload: Workload) -> dict[str, PreparedMethod]:
    """The methods with each plug-in that they take, by name; first of all ER."""
    prepared = {ER: PreparedMethod(methods.ER, workload)}
    for name, plug_in in product(names, plug_ins):
        method: type[ReplayMethod] = getattr(methods, name)
        if plug_in == "none" or method.takes_distiller():
            row = contender_name(name, plug_in)
            prepared[row] = prepared.get(row) or PreparedMethod(method, workload, **options_of(plug_in))
    return prepared


def measure(prepared: dict[str, PreparedMethod], rounds: int, number: int) -> list[Row]:
    """A row for each method; ``ms`` is the shortest step, and ``median`` the median ratio of a round."""
    found = {name: counts(method.step) for name, method in prepared.items()}
    seconds = interleaved({name: method.step for name, method in prepared.items()}, rounds, number)
    return [
        {
            "step of": name,
            "ms": 1e3 * min(seconds[name]),
            "in ER steps": min(seconds[name]) / min(seconds[ER]),
            "median": median(own / er for own, er in zip(seconds[name], seconds[ER], strict=True)),
            "FLOP in ER steps": float(found[name]["GFLOP"]) / float(found[ER]["GFLOP"]),
            **found[name],
        }
        for name in prepared
    ]


def main() -> None:
    """Measure the methods of the command line."""
    parser = arguments(__doc__)
    parser.add_argument("--methods", nargs="+", default=[ER], choices=[*METHODS, "all"], metavar="METHOD")
    parser.add_argument("--plug_ins", nargs="+", default=["none", "hard", "exact", "delayed"], choices=PLUG_INS)
    parser.add_argument("--number", type=int, default=1, help="steps of a timing, after two untimed ones")
    parser.add_argument("--profile", action="store_true", help="print where each step spends its time, instead")
    settings = parser.parse_args()
    names = list(METHODS) if "all" in settings.methods else settings.methods
    prepared = prepare(names, settings.plug_ins, workload_of(settings))
    if settings.profile:
        for name, method in prepared.items():
            with profile(activities=[ProfilerActivity.CPU]) as profiled:
                method.step()
            print(name, profiled.key_averages().table(sort_by="self_cpu_time_total", row_limit=15), sep="\n")
        return
    rows = measure(prepared, settings.rounds, settings.number)
    finish(settings, "Steps", {"A training step": rows})


if __name__ == "__main__":
    main()
