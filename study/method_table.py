"""The manual's tables of methods: what each stores and costs, and its accuracy."""

from ddn_lightning import methods
from ddn_lightning.names import METHODS
from ddn_lightning.report.tables import NOTHING, markdown_table
from study.published import measured, published
from study.recorded_cost import recorded_steps


def step_cost(class_name: str) -> str:
    """A method's step in steps of ER, where it was measured."""
    found = recorded_steps().get(class_name)
    return NOTHING if found is None else f"{found:.2f}"


def method_table() -> str:
    """What each method stores and costs, as Markdown; links are relative to ``docs/methods/``."""
    header = ["method", "also stores", "extra work", "ER steps", "distiller"]
    rows = []
    for name, facts in METHODS.items():
        takes = "yes" if getattr(methods, name).takes_distiller() else "no"
        title = f"[{facts.title}]({facts.key}.md) {facts.reference}"
        rows.append([title, facts.stores, facts.cost, step_cost(name), takes])
    return markdown_table(header, rows)


def reached_table() -> str:
    """The accuracy of each method, published and ours, as Markdown."""
    header = ["method", "published ACC", "our ACC"]
    rows = [
        [f"[{facts.title}]({facts.key}.md)", str(published(facts.key) or NOTHING), measured(facts.key)]
        for facts in METHODS.values()
    ]
    return markdown_table(header, rows)
