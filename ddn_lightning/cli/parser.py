"""The parser of most commands, with one-line errors that name the option, the value and the choices."""

import difflib
import inspect
import re
from importlib import import_module
from pkgutil import resolve_name
from typing import Any, NoReturn

from jsonargparse import ActionConfigFile, ArgumentParser  # type: ignore[attr-defined]  # the first is not in its __all__

from ddn_lightning.checkpoint.construction import full_signature
from ddn_lightning.errors import ConfigurationError, did_you_mean
from ddn_lightning.reproduce.shipped_configs import find_config, shipped_names

CHOICES = {  # option -> module and base class of its choices, imported when an error lists them
    "model": ("ddn_lightning.methods", "ddn_lightning.core:ReplayMethod"),
    "data": ("ddn_lightning.data", "ddn_lightning.data:TaskSequence"),
    "backbone": ("ddn_lightning.networks", "ddn_lightning.networks:Backbone"),
    "distiller": ("ddn_lightning.distill", "ddn_lightning.distill:LabelDistiller"),
    "memory": ("ddn_lightning.memory", "ddn_lightning.memory:Memory"),
    "optimizer": ("torch.optim", "torch.optim:Optimizer"),
    "lr_scheduler": ("torch.optim.lr_scheduler", "torch.optim.lr_scheduler:LRScheduler"),
    "stream": ("ddn_lightning.data", "ddn_lightning.data:Stream"),
}
CANNOT_STEP = ("LBFGS", "ReduceLROnPlateau")  # refused at the start of a fit
NOISE = (
    r"Does not validate against any of the Union subtypes",
    r"Subtypes: .*",
    r"Errors:",
    r"Expected a <class 'NoneType'>",
    r"Expected a path but .*",
    r"Given value.*",
    r"Problem with given class_path .*",
)
OF_FUNCTION = re.compile(r"Type collections\.abc\.Callable\[.*\] expects a function or a callable class: ")
GOT_NAMESPACE = re.compile(r"\. Got value: Namespace\(.*")
NOT_ACCEPTED = re.compile(r"(?:Problem with given class_path '([\w.]+)':\s+)?Option '(\w+)' is not accepted")
UNKNOWN_OPTION = re.compile(r"(?:unrecognized arguments: |does not accept option ')(-*)([\w.]+)")
NOT_A_LIST = re.compile(r"Expected a (?:list|collections\.abc\.Sequence)\. Got value: ([^\[\]{}]*)$")
GIVEN = re.compile(r"Given value: (?!NestedArg|Namespace)(.+)")  # the first is that of the innermost option
KEY = re.compile(r'Parser key "(.+)":')
PLAIN_TYPE = re.compile(r"Expected a <class '(int|float|str|bool)'>(?:\. Got value: (.*))?")
TYPE_WORDS = {"int": "a whole number", "float": "a number", "str": "a text", "bool": "true or false"}
NOT_A_CLASS = re.compile(r"Expected a dot import path string: (.*)")


class ConfigFile(ActionConfigFile):
    """``--config``: a file, or the name of one that the package ships."""

    def __call__(self, parser: Any, cfg: Any, values: Any, option_string: str | None = None) -> None:
        """Merge the file into the configuration."""
        super().__call__(parser, cfg, find_config(values), option_string)  # type: ignore[no-untyped-call]

    def completer(self, prefix: str, **kwargs: Any) -> list[str]:
        """Files and names, for argcomplete."""
        files: list[str] = super().completer(prefix, **kwargs)  # type: ignore[no-untyped-call]
        return files + [name for name in shipped_names() if name.startswith(prefix)]


class CommandParser(ArgumentParser):
    """Raises one-line errors."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs, allow_abbrev=False)  # a shortened option may mean another one tomorrow

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise a :class:`ConfigurationError`."""
        raise ConfigurationError(
            f"{readable(message)}{similar_option(message, self)} (see '{self.prog} --help')"
        ) from ex


def readable(message: str) -> str:
    r"""Jsonargparse's error in one line.

    >>> readable('Parser key "model":\n  Errors:\n    - Parser key "lr":\n        Expected a <class \'float\'>')
    'model.lr must be a number'
    >>> readable('Parser key "lr":\n  Errors:\n    - Expected a <class \'float\'>\n  Given value: x')
    'lr must be a number, got x'
    """
    explained = NOT_ACCEPTED.sub(_with_similar, message)
    lines = [GOT_NAMESPACE.sub("", OF_FUNCTION.sub("", line.strip(" -"))) for line in explained.splitlines()]
    keys = [found[1] for line in lines if (found := KEY.fullmatch(line))]
    rest = list(  # once each: a list of objects and an object are refused alike
        dict.fromkeys(
            line for line in lines if line and not KEY.fullmatch(line) and not any(re.fullmatch(n, line) for n in NOISE)
        )
    )
    if not keys or not rest:
        return message
    is_class = keys[-1] in CHOICES or len(rest) == 1  # else a number or a tensor, which jsonargparse looks up
    named = [NOT_A_CLASS.sub(r"got \1", line) for line in rest] if not is_class else rest
    details = [NOT_A_CLASS.sub(lambda found: _not_a_class(found[1], keys[-1]), line) for line in named]
    is_value_named = any("Got value" in line or not line.startswith("Expected") for line in details)
    if not is_value_named and (given := GIVEN.search(message)) is not None:
        details.append(f"got {given[1]}")
    if (types := _plain_types(details)) is not None:
        return f"{'.'.join(keys)} must be {types}"
    sentence = f"{'.'.join(keys)}: {'; '.join(details)}"
    plain = re.sub(
        r"<class '([\w.]+)'>|a typing\.Literal\[(.+?)\]", lambda found: found[1] or f"one of {found[2]}", sentence
    )
    return NOT_A_LIST.sub(r"Expected a list, such as '[\1]'. Got value: \1", plain)


def _plain_types(details: list[str]) -> str | None:
    """Expected numbers, texts and truth values in words, and the value; ``None`` if anything else is expected.

    >>> _plain_types(["Expected a <class 'bool'>", "Expected a <class 'int'>", "got abc"])
    'a whole number, true or false, got abc'
    """
    *expected, last = [*details, ""] if not details[-1].startswith("got ") else details
    found = [PLAIN_TYPE.fullmatch(line) for line in expected]
    if not found or None in found:
        return None
    names = {one[1]: one[2] for one in found if one is not None}
    words = [word for name, word in TYPE_WORDS.items() if name in names]
    given = [f"got {value}" for value in names.values() if value] or [last]
    return ", ".join([*words, *filter(None, given)])


def class_names(option: str) -> list[str]:
    """The classes of this package, and of torch, that an option accepts by their short name."""
    if option not in CHOICES:
        return []
    room, base = map(resolve_name, CHOICES[option])
    exported = [value for name, value in vars(room).items() if name in room.__all__ and inspect.isclass(value)]
    usable = [one for one in exported if issubclass(one, base) and one is not base and not inspect.isabstract(one)]
    return sorted(one.__name__ for one in usable if one.__name__ not in CANNOT_STEP)


def similar_option(message: str, parser: ArgumentParser) -> str:
    """The option that a message about an unknown one probably means, to append to the message."""
    found = UNKNOWN_OPTION.search(message)
    if found is None:
        return ""
    dashes, given = found.groups()
    commands = getattr(parser, "_subcommands_action", None)
    parsers = [parser, *(commands.choices.values() if commands else ())]
    known = {name.lstrip("-") for one in parsers for name in one._option_string_actions}
    groups = {name.partition(".")[0] for name in known}
    group, dot, rest = given.partition(".")
    candidates = known if group in groups else {f"{one}{dot}{rest}" for one in groups}
    nearest = did_you_mean(f"{dashes}{given}", sorted(f"{dashes}{name}" for name in candidates))
    if nearest or dot:
        return nearest
    (last,) = difflib.get_close_matches(given, {name.rpartition(".")[2] for name in known}, n=1) or [""]
    full = sorted(name for name in known if name.rpartition(".")[2] == last)
    return did_you_mean(f"{dashes}{full[0]}", [f"{dashes}{full[0]}"]) if len(full) == 1 else ""


def _with_similar(found: re.Match[str]) -> str:
    """An option that is not accepted, with a similar one of its class."""
    path, option = found.groups()
    return f"{found[0]}{did_you_mean(option, _arguments_of(path) if path else ())}"


def _arguments_of(path: str) -> list[str]:
    """The names of a class's arguments; none if it cannot be imported."""
    module, _, name = path.rpartition(".")
    try:
        return list(full_signature(getattr(import_module(module), name)).parameters)
    except (ImportError, AttributeError, ValueError, TypeError):
        return []


def _not_a_class(value: str, option: str) -> str:
    names = class_names(option)
    if value.removeprefix("ddn_lightning.") in names:
        return f"{value} is not one that this method can take"
    hint = f"; the choices are {', '.join(names)}, or give the import path of your own" if names else ""
    return f"{value} is not a known class{hint}{did_you_mean(value, names, most=3)}"
