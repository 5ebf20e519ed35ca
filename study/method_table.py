"""The tables of methods: what each stores and costs and, in the README, its accuracy beside a published one."""

from ddn_lightning import methods
from ddn_lightning.names import METHODS
from ddn_lightning.report.tables import NOTHING, markdown_table
from study.published import BUFFER_SIZE, measured, published
from study.recorded_cost import recorded_steps

NOTE = f"""\
*ER steps*: processor time of a step to that of ER's, without work at a task's end ([Speed](docs/science/speed.md)).
*ACC*: online on Split CIFAR-10, M = {BUFFER_SIZE} unless stated, published / ours, mean ± std (n). Ours has a
ResNet-18 of width 20 and batches of 32 + 32 unless stated, in float32 or, where it says so, bf16-mixed; the published
numbers have other networks, batches and augmentation, as each method's page of the site says: a landmark, not a target.
"""


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
