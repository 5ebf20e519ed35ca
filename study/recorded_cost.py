"""The cost of a step of each method, as ``benchmarks.steps`` has recorded it.

``python -m benchmarks.steps --methods all --plug_ins none exact --rounds 4`` makes the record.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType


@cache
def recorded_steps() -> Mapping[str, float]:
    """Processor time of a step in steps of ER, by class name, with DDN as ``ER + DDN``.

    >>> recorded_steps()["ER"]
    1.0
    """
    record = json.loads((files("benchmarks") / "records/methods.json").read_text(encoding="utf-8"))
    return MappingProxyType({row["step of"]: row["in ER steps"] for row in record["tables"]["A training step"]})
