"""Adds to the pages of methods what the package knows: facts, settings and results."""

import csv
from pathlib import Path
from typing import Any

from mkdocs.structure.pages import Page

from ddn_lightning import methods
from ddn_lightning.names import METHODS
from study.measured import measured_runs, measured_table
from study.method_table import step_cost
from study.published import measured, published

CONFIGS = Path(__file__).parents[1] / "configs"


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Called by MkDocs for each page."""
    folder, _, name = page.file.src_uri.rpartition("/")
    if folder != "methods" or name == "index.md":
        return markdown
    key = name.removesuffix(".md")
    (class_name,) = [class_name for class_name, facts in METHODS.items() if facts.key == key]
    return "\n\n".join([markdown, _facts(class_name), _settings(key), _results(key)])


def _facts(class_name: str) -> str:
    facts, method = METHODS[class_name], getattr(methods, class_name)
    rows = {
        "class": f"[`{class_name}`][ddn_lightning.methods.{class_name}]",
        "source": facts.reference,
        "configuration": f"`-c configs/method/{facts.key}.yaml`",
        "also stores": facts.stores,
        "extra work": facts.cost,
        "a step in [ER steps](../glossary.md)": f"{step_cost(class_name)} ([how it is measured](../science/speed.md))",
        "distiller": "yes" if method.takes_distiller() else "no",
        "tasks may share classes": f"no: {why}" if (why := method.needs_disjoint_classes) else "yes",
    }
    if (known := published(facts.key)) is not None:
        details = ", ".join(filter(None, [known.network, known.note]))
        rows["[ACC](../glossary.md) online on Split CIFAR-10, published"] = f"{known}: {details}"
        rows["our ACC, ResNet18 width 20, 200 stored samples"] = measured(facts.key)
    first, *others = (f"| {name} | {value} |" for name, value in rows.items())
    return "\n".join([first, "|---|---|", *others])


def _settings(key: str) -> str:
    with (CONFIGS / "tuned.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["method"] == key]
    if not rows:
        return ""
    head = ["## Settings", "", "| preset | applies to | options | source |", "|---|---|---|---|"]
    for row in rows:
        where = " ".join(row[name] for name in ("setting", "data", "buffer", "plugin") if row[name]) or "all"
        head.append(f"| {row['preset']} | {where} | `{row['overrides']}` | {row['source']} |")
    return "\n".join(head)


def _results(key: str) -> str:
    table = measured_table([run for run in measured_runs() if run.group.method == key])
    note = "Our own runs. [All runs](../science/all_runs.md#means-and-differences) explains the columns."
    return f"## Results\n\n{note}\n\n{table}" if table else ""
