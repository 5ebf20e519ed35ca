"""Turns the parser's complaints into one sentence that names the option, the value and the choices."""

import inspect
import re

import ddn_lightning
from ddn_lightning.data.task_sequence import TaskSequence
from ddn_lightning.distill.distiller import LabelDistiller
from ddn_lightning.methods.base import ReplayMethod
from ddn_lightning.networks.backbone import Backbone

BASES: dict[str, type] = {
    "model": ReplayMethod,
    "data": TaskSequence,
    "backbone": Backbone,
    "distiller": LabelDistiller,
}
NOISE = (
    r"Does not validate against any of the Union subtypes",
    r"Subtypes: .*",
    r"Errors:",
    r"Expected a <class 'NoneType'>",
    r"Expected a path but .*",
    r"Given value.*",
    r"Problem with given class_path .*",
)
KEY = re.compile(r'Parser key "(.+)":')
NOT_A_CLASS = re.compile(r"Expected a dot import path string: (.*)")


def readable(message: str) -> str:
    r"""One line of what jsonargparse says in ten.

    >>> readable('Parser key "model":\n  Errors:\n    - Parser key "lr":\n        Expected a <class \'float\'>')
    'model.lr: Expected a float'
    """
    lines = [line.strip(" -") for line in message.splitlines()]
    keys = [found[1] for line in lines if (found := KEY.fullmatch(line))]
    rest = [
        line for line in lines if line and not KEY.fullmatch(line) and not any(re.fullmatch(n, line) for n in NOISE)
    ]
    if not keys or not rest:
        return message
    details = [NOT_A_CLASS.sub(lambda found: _not_a_class(found[1], keys[-1]), line) for line in rest]
    sentence = f"{'.'.join(keys)}: {'; '.join(details)}"
    return re.sub(
        r"<class '([\w.]+)'>|typing\.Literal\[(.+?)\]", lambda found: found[1] or f"one of {found[2]}", sentence
    )


def class_names(option: str) -> list[str]:
    """The classes of the package that an option of the command line can name in short."""
    base = BASES.get(option)
    exported = [one for one in vars(ddn_lightning).values() if inspect.isclass(one) and not inspect.isabstract(one)]
    return sorted(one.__name__ for one in exported if base is not None and issubclass(one, base) and one is not base)


def _not_a_class(value: str, option: str) -> str:
    choices = ", ".join(class_names(option))
    hint = f"; the choices are {choices}, or give the import path of your own" if choices else ""
    return f"{value} is not a known class{hint}"
