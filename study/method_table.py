"""The manual's table of methods: what each stores, costs and reaches."""

from ddn_lightning import ResNet18, methods
from ddn_lightning.core.buffer_bytes import full_bytes
from ddn_lightning.names import METHODS
from ddn_lightning.networks.frozen_features import stored_form
from ddn_lightning.report.tables import NOTHING, markdown_table
from study.published import BUFFER_SIZE, measured, published
from study.recorded_cost import recorded_steps

IMAGE = (3, 32, 32)
NOTE = f"""\
*keeps*: a full memory of {BUFFER_SIZE} images of CIFAR-10, and all networks and statistics except those of the network
that predicts; `--model.buffer_bytes` gives methods equal budgets ([Compare](../how_to/see_it.md#compare)).
*ER steps*: processor time of a step in steps of ER, without work at a task's end ([Speed](../science/speed.md)).
*ACC*: online on Split CIFAR-10, M = {BUFFER_SIZE} unless stated, published / ours, mean ± std (n). Ours has a
ResNet-18 of width 20 and batches of 32 + 32 unless stated, in float32 or, where it says so, bf16-mixed. The published
numbers have other networks, batches and augmentation, as each method's page says: a landmark, not a target.
"""


def step_cost(class_name: str) -> str:
    """A method's step in steps of ER, where it was measured."""
    found = recorded_steps().get(class_name)
    return NOTHING if found is None else f"{found:.2f}"


def kept(class_name: str) -> str:
    """What a method keeps at most, on CIFAR-10 with the network of the other columns."""
    method = getattr(methods, class_name)(ResNet18(width=20), num_classes=10, buffer_size=BUFFER_SIZE)
    number = full_bytes(method, stored_form(method.backbone, IMAGE))
    return f"{number / 1e6:.2f} MB" if number else NOTHING


def method_table() -> str:
    """The table as Markdown, with a note on its columns; links are relative to ``docs/methods/``."""
    header = ["method", "stores besides images and labels", "keeps", "a step beyond ER's", "ER steps"]
    header += ["distiller", "ACC"]
    rows = []
    for name, facts in METHODS.items():
        takes = "yes" if getattr(methods, name).takes_distiller() else "no"
        title = f"[{facts.title}]({facts.key}.md) {facts.reference}"
        reached = f"{published(facts.key) or NOTHING} / {measured(facts.key)}"
        rows.append([title, facts.stores, kept(name), facts.cost, step_cost(name), takes, reached])
    return markdown_table(header, rows) + "\n" + NOTE
