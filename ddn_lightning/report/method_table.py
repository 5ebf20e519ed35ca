"""The tables of methods: what each stores and costs and, in the README, its accuracy beside a published one."""

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import product

from ddn_lightning import methods
from ddn_lightning.names import METHODS
from ddn_lightning.report.measured import Group, measured_runs, reported
from ddn_lightning.report.paper import Cell, paper_targets
from ddn_lightning.report.recorded_cost import recorded_steps
from ddn_lightning.report.statistic import estimate
from ddn_lightning.report.tables import NOTHING, markdown_table

DATA, SETTING, BUFFER_SIZE = "cifar10", "online", 200  # of our runs beside published ones
NETWORKS = {"ResNet18 width 20": "", "ResNet18 width 20 in bf16-mixed": ", bf16"}  # of which the first that was run
DDN_PAPER = "[DDN paper](https://arxiv.org/abs/2505.20135)"
PAPER_NETWORK = "ResNet-18 of width 64"
NOT_RUN = "not run yet"
NOTE = f"""\
*ER steps*: processor time of a step to that of ER's, without work at a task's end ([Speed](docs/science/speed.md)).
*ACC*: online on Split CIFAR-10, M = {BUFFER_SIZE} unless stated, published / ours, mean ± std (n). Ours has a
ResNet-18 of width 20 and batches of 32 + 32, in float32 or, where it says so, bf16-mixed; the published numbers have
other networks, batches and augmentation, as each method's page says: a landmark, not a target.
"""


@dataclass(frozen=True)
class Published:
    """A published accuracy of a method, online on Split CIFAR-10.

    Args:
        acc: Average accuracy in percent, with the digits that were published.
        buffer_size: Samples that the memory held.
        network: The network, if it is known.
        source: Who has published it, as Markdown.
        note: What else differs from our runs.
        our_options: The options of our runs that follow the published settings, as ``measured.csv`` names them.
    """

    acc: str
    buffer_size: int
    network: str
    source: str
    note: str = ""
    our_options: str = ""

    def __str__(self) -> str:
        memory = "" if self.buffer_size == BUFFER_SIZE else f", M = {self.buffer_size}"
        return f"{self.acc} ({self.source}{memory})"


@cache
def published(method: str) -> Published | None:
    """What the DDN paper reports for a method, by its key; of other methods, what ``published.csv`` has."""
    target = paper_targets().get(Cell(SETTING, DATA, BUFFER_SIZE, method))
    if target is not None and target.acc is not None:
        return Published(f"{target.acc:.2f}", BUFFER_SIZE, PAPER_NETWORK, DDN_PAPER, "its Table 1")
    text = (files("ddn_lightning.report") / "published.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines()):
        if row["method"] == method:
            buffer_size, texts = int(row["buffer_size"]), ("network", "source", "note", "our_options")
            return Published(row["acc"], buffer_size, *(row[name] for name in texts))
    return None


def measured(method: str) -> str:
    """Our accuracy for a method, by its key: mean ± standard deviation (n), and the precision unless it is float32."""
    beside, groups = published(method), reported(measured_runs())
    options = "" if beside is None else beside.our_options
    for (network, precision), memory in product(NETWORKS.items(), (BUFFER_SIZE, 0)):  # bounds have no memory
        runs = groups.get(Group(DATA, network, SETTING, memory, method, "none", options))
        if runs:
            return f"{estimate(run.acc for run in runs)}{precision}"
    return NOT_RUN


def step_cost(class_name: str) -> str:
    """A method's step in steps of ER, where it was measured."""
    found = recorded_steps().get(class_name)
    return NOTHING if found is None else f"{found:.2f}"


def method_list() -> str:
    """What each method stores and costs, with a link to its page beside this one, as Markdown."""
    header = ["method", "stores besides images and labels", "a step beyond ER's", "ER steps"]
    rows = [
        [f"[{facts.title}]({facts.key}.md) {facts.reference}", facts.stores, facts.cost, step_cost(name)]
        for name, facts in METHODS.items()
    ]
    return markdown_table(header, rows)


def method_table() -> str:
    """The README's table as Markdown, with a note on its columns."""
    header = ["method", "stores besides images and labels", "a step beyond ER's", "ER steps", "distiller"]
    rows = []
    for name, facts in METHODS.items():
        takes = "yes" if getattr(methods, name).takes_distiller() else "no"
        title = f"[`{name}`](docs/methods/{facts.key}.md) {facts.reference}"
        beside = f"{published(facts.key) or NOTHING} / {measured(facts.key)}"
        rows.append([title, facts.stores, facts.cost, step_cost(name), takes, beside])
    return markdown_table([*header, "ACC beside its paper"], rows) + "\n" + NOTE
