"""The cost of a step of each method, as ``ddn bench`` has recorded it in ``speed.json``."""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

COMMAND = "ddn bench --method all --growth --rounds 4 --json"  # makes the record, in a quarter of an hour


def recorded_cost() -> dict[str, Any]:
    """The record as ``COMMAND`` has written it."""
    text = (files("ddn_lightning.report") / "speed.json").read_text(encoding="utf-8")
    record: dict[str, Any] = json.loads(text)
    return record


@cache
def recorded_steps() -> Mapping[str, float]:
    """Processor time of a step in steps of ER, by class name, with DDN as ``ER + DDN``.

    >>> recorded_steps()["ER"]
    1.0
    """
    return MappingProxyType({name: step["er_steps"] for name, step in recorded_cost()["steps"].items()})
