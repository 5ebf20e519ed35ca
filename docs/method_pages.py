"""Adds to the pages of methods what the package knows: facts, settings and results."""

import csv
from pathlib import Path
from typing import Any

from mkdocs.structure.pages import Page

from ddn_lightning import methods
from ddn_lightning.report.names import METHODS
from study.measured import measured_runs, measured_table
from study.method_table import step_cost
from study.published import measured, published
from study.recorded_cost import COMMAND

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
        "file": f"`-c configs/method/{facts.key}.yaml`",
        "stores besides images and labels": facts.stores,
        "cost per step beyond ER's": facts.cost,
        f"a step in ER steps (`{COMMAND}`)": step_cost(class_name),
        "takes a distiller": "yes" if method.takes_distiller() else "no",
        "tasks may share classes": f"no: {why}" if (why := method.needs_disjoint_classes) else "yes",
    }
    if (known := published(facts.key)) is not None:
        details = ", ".join(filter(None, [known.network, known.note]))
        rows["ACC online on Split CIFAR-10, as published"] = f"{known}: {details}"
        rows["the same of ours, ResNet18 width 20, M = 200"] = measured(facts.key)
    first, *others = (f"| {name} | {value} |" for name, value in rows.items())
    return "\n".join([first, "|---|---|", *others])


def _settings(key: str) -> str:
    with (CONFIGS / "tuned.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["method"] == key]
    if not rows:
        return ""
    head = ["## Settings", "", "| preset | for | options | source |", "|---|---|---|---|"]
    for row in rows:
        where = " ".join(row[name] for name in ("setting", "data", "buffer", "plugin") if row[name]) or "all"
        head.append(f"| {row['preset']} | {where} | `{row['overrides']}` | {row['source']} |")
    return "\n".join(head)


def _results(key: str) -> str:
    table = measured_table([run for run in measured_runs() if run.group.method == key])
    return f"## Results\n\nOur own runs, from `study/measured.csv`.\n\n{table}" if table else ""
