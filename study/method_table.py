"""The manual's tables of methods: what each stores, keeps and costs, and its accuracy."""

from ddn_lightning import ResNet18, methods
from ddn_lightning.core.buffer_bytes import full_bytes
from ddn_lightning.names import METHODS
from ddn_lightning.networks.frozen_features import stored_form
from ddn_lightning.report.tables import NOTHING, markdown_table
from study.published import BUFFER_SIZE, measured, published
from study.recorded_cost import recorded_steps

IMAGE = (3, 32, 32)


def step_cost(class_name: str) -> str:
    """A method's step in steps of ER, where it was measured."""
    found = recorded_steps().get(class_name)
    return NOTHING if found is None else f"{found:.2f}"


def kept(class_name: str) -> str:
    """The bytes that a method keeps at most, on CIFAR-10 with the network of the other columns."""
    method = getattr(methods, class_name)(ResNet18(width=20), num_classes=10, buffer_size=BUFFER_SIZE)
    number = full_bytes(method, stored_form(method.backbone, IMAGE))
    return f"{number / 1e6:.2f} MB" if number else NOTHING


def method_table() -> str:
    """What each method stores and costs, as Markdown; links are relative to ``docs/methods/``."""
    header = ["method", "also stores", "keeps", "extra work", "ER steps", "distiller"]
    rows = []
    for name, facts in METHODS.items():
        takes = "yes" if getattr(methods, name).takes_distiller() else "no"
        title = f"[{facts.title}]({facts.key}.md) {facts.reference}"
        rows.append([title, facts.stores, kept(name), facts.cost, step_cost(name), takes])
    return markdown_table(header, rows)


def reached_table() -> str:
    """The accuracy of each method, published and ours, as Markdown."""
    header = ["method", "published ACC", "our ACC"]
    rows = [
        [f"[{facts.title}]({facts.key}.md)", str(published(facts.key) or NOTHING), measured(facts.key)]
        for facts in METHODS.values()
    ]
    return markdown_table(header, rows)
