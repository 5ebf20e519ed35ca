"""Names of all methods, distillers and streams, collected from the classes that the package exports."""

import inspect
from types import ModuleType

from ddn_lightning import data, distill, methods
from ddn_lightning.core.replay_method import ReplayMethod
from ddn_lightning.data.streams.stream import Stream
from ddn_lightning.distill.label_distiller import LabelDistiller
from ddn_lightning.distill.learner import Facts


def _facts_of(package: ModuleType, base: type[ReplayMethod] | type[LabelDistiller]) -> dict[str, Facts]:
    """The facts by class name, of the classes that state their own."""
    classes = [value for value in vars(package).values() if inspect.isclass(value) and issubclass(value, base)]
    return {cls.__name__: cls.facts for cls in classes if "facts" in vars(cls)}


METHODS = _facts_of(methods, ReplayMethod)
PLUGINS = _facts_of(distill, LabelDistiller)
STREAMS = sorted(
    name
    for name, value in vars(data).items()
    if inspect.isclass(value) and issubclass(value, Stream) and not inspect.isabstract(value)
)
TITLES = {facts.key: facts.title for facts in (*METHODS.values(), *PLUGINS.values())}


def method_key(class_name: str) -> str:
    """The key of a method's class; for a user's class, its name.

    >>> method_key("DERPlusPlus"), method_key("Mine")
    ('derpp', 'Mine')
    """
    return METHODS[class_name].key if class_name in METHODS else class_name


def plugin_key(class_name: str | None) -> str:
    """The key of a distiller's class, or ``none``; for a user's class, its name."""
    if class_name is None:
        return "none"
    return PLUGINS[class_name].key if class_name in PLUGINS else class_name


def title_of(method: str, plugin: str = "none") -> str:
    """The title of a method with its distiller in tables, from their keys.

    >>> title_of("derpp", "ddn")
    'DER++ + DDN'
    """
    return " + ".join(TITLES.get(name, name) for name in (method, plugin) if name != "none")
