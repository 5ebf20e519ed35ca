"""How an object was made, as plain data: its class and its constructor's arguments; and the object made anew."""

import inspect
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Self, TypeVar, Union, get_args, get_origin

from ddn_lightning.errors import ConfigurationError, check_choice

CLASS_PATH, INIT_ARGS, NOT_KEPT = "class_path", "init_args", "not_kept"
PACKAGE = __name__.partition(".")[0]  # whose public names are imported when needed
PRETRAINED = "pretrained"  # argument of a backbone
PLAIN = (bool, int, float, str, type(None))
Made = TypeVar("Made", bound="Constructed")
Found = TypeVar("Found")


class Constructed:
    """Remembers its constructor's arguments, so that a checkpoint can say how to make it anew.

    Signatures show the arguments of the base classes too, in ``help()`` and completion. Arguments that are declared as
    one of several words, or as whole numbers, are checked.

    Example:
        >>> class Net(Constructed):
        ...     def __init__(self, width: int = 4, **kwargs): ...
        >>> construction_of(Net(width=8))[INIT_ARGS]
        {'width': 8}
        >>> Net(width=8.5)
        Traceback (most recent call last):
        ddn_lightning.errors.ConfigurationError: width must be a whole number, got 8.5
    """

    constructor_arguments: dict[str, Any]

    @classmethod
    def without_weights(cls, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments from a checkpoint, without those that read or fetch weights, which the checkpoint contains."""
        parameter = full_signature(cls).parameters.get(PRETRAINED)
        if parameter is None:
            return dict(arguments)
        return {**arguments, PRETRAINED: None if parameter.default is None else False}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.__signature__ = full_signature(cls)  # type: ignore[attr-defined]  # mypy does not know it

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Note the arguments; what else is wrong with them is for the constructor to say."""
        made = super().__new__(cls)
        signature = full_signature(cls)
        try:
            given = signature.bind_partial(*args, **kwargs).arguments
        except TypeError:
            given = {}
        extra = given.pop("kwargs", {})
        for name, value in given.items():
            _check_declared(name, value, signature.parameters[name].annotation)
        vars(made)["constructor_arguments"] = {**given, **extra}
        return made


def _check_declared(name: str, value: Any, annotation: Any) -> None:
    """Refuse a value other than the words of a ``Literal``, and a fraction for an ``int``; either may be optional."""
    is_union = get_origin(annotation) in (Union, UnionType)
    kinds = [kind for kind in (get_args(annotation) if is_union else (annotation,)) if kind is not type(None)]
    if len(kinds) > 1 or value is None:
        return
    if get_origin(kinds[0]) is Literal:
        check_choice(get_args(kinds[0]), **{name: value})
    if kinds[0] is int and isinstance(value, float):
        raise ConfigurationError(f"{name} must be a whole number, got {value}")


def full_signature(cls: type) -> inspect.Signature:
    """The arguments of a class, with those that it passes to its bases by ``*args`` and ``**kwargs``.

    A class whose ``**kwargs`` are those of a part names the class of the part in ``kwargs_of``.
    """
    positional: dict[str, inspect.Parameter] = {}
    keywords: dict[str, inspect.Parameter] = {}
    takes_positional = True
    for base in [base for base in cls.mro() if "__init__" in vars(base)]:
        own = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
        for parameter in own:
            if parameter.name in {**positional, **keywords}:
                continue
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and takes_positional:
                positional[parameter.name] = parameter
            elif parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                keywords[parameter.name] = parameter.replace(kind=parameter.KEYWORD_ONLY)
        kinds = {parameter.kind for parameter in own}
        takes_positional = takes_positional and inspect.Parameter.VAR_POSITIONAL in kinds
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            break
        if (part := vars(base).get("kwargs_of")) is not None:
            given = inspect.signature(part).parameters
            keywords |= {
                name: one.replace(kind=one.KEYWORD_ONLY) for name, one in given.items() if name not in positional
            }
            break
    return inspect.Signature([*positional.values(), *keywords.values()])


def construction_of(made: Constructed) -> dict[str, Any]:
    """Class and arguments as plain data, which loads with ``weights_only=True``."""
    arguments = {name: plain(value) for name, value in made.constructor_arguments.items()}
    return {CLASS_PATH: path_of(type(made)), INIT_ARGS: arguments}


def changed_arguments(description: dict[str, Any], made: Constructed) -> list[str]:
    """The arguments of an object that differ from those of a description of the same class, also of its parts.

    >>> class Net(Constructed):
    ...     def __init__(self, width: int = 4, depth: int = 2): ...
    >>> changed_arguments(construction_of(Net(depth=3)), Net(width=8, depth=3))
    ['width=8 (was 4)']
    """
    parameters = full_signature(type(made)).parameters.values()
    defaults = {one.name: plain(one.default) for one in parameters if one.default is not one.empty}
    before, now = ({**defaults, **of[INIT_ARGS]} for of in (description, construction_of(made)))
    changed = []
    for name, value in now.items():
        then: Any = before.get(name)
        part = made.constructor_arguments.get(name)
        if isinstance(part, Constructed) and _class_of(then) == value[CLASS_PATH]:
            changed += [f"{name}.{line}" for line in changed_arguments(then, part)]
        elif value != then and not _is_left_out(value) and not _is_left_out(then):
            changed.append(f"{name}={_class_of(value) or value} (was {_class_of(then) or then})")
    return changed


def make(description: Any, base: type[Made], what: str, classes: Sequence[type] = ()) -> Made:
    """The object that was described. No weights are read or fetched for it.

    Args:
        description: From :func:`construction_of`.
        base: What it must be: nothing else is made.
        what: What it is, for messages.
        classes: Classes to find by their names, see :func:`find_class`.
    """
    if not isinstance(description, dict) or NOT_KEPT in description:
        kind = description.get(NOT_KEPT) if isinstance(description, dict) else description
        raise ConfigurationError(f"{what} cannot be made from the checkpoint, which holds no {kind}: pass {what}=")
    cls = find_class(description.get(CLASS_PATH), base, what, classes)
    arguments = description.get(INIT_ARGS)
    if not isinstance(arguments, dict):
        raise ConfigurationError(f"the checkpoint's {what} must have its arguments, got {arguments!r}")
    made = {
        name: make(value, kind_of_argument(cls, name), name, classes) if _class_of(value) is not None else value
        for name, value in arguments.items()
        if not _is_left_out(value)
    }
    return cls(**cls.without_weights(made))


def kind_of_argument(cls: type, name: str) -> type[Constructed]:
    """The class that an object must have to be this argument of a class, as far as its annotation says so.

    >>> from ddn_lightning import ER
    >>> kind_of_argument(ER, "distiller").__name__, kind_of_argument(ER, "lr").__name__
    ('LabelDistiller', 'Constructed')
    """
    parameter = full_signature(cls).parameters.get(name)
    annotation = None if parameter is None else parameter.annotation
    kinds = [
        one for one in (annotation, *get_args(annotation)) if inspect.isclass(one) and issubclass(one, Constructed)
    ]
    return kinds[0] if len(kinds) == 1 else Constructed


def find_class(
    path: object, base: type[Found], what: str, classes: Sequence[type] = (), advice: str | None = None
) -> type[Found]:
    """The class with a name from a checkpoint, if it is one of a kind. Nothing is imported.

    Args:
        path: The import path.
        base: What it must be.
        what: What it is, for messages.
        classes: Classes that the caller trusts. Others must be public ones of this package, or of a module that is
            already imported.
        advice: What to do if it is not found; by default pass an object as the argument ``what``.
    """
    found = {path_of(one): one for one in classes}.get(str(path)) or find_imported(str(path))
    if found is None:
        advice = f"pass {what}=" if advice is None else advice
        message = (
            f"{what} was made by {path}, which is not imported: import its module first (--import MODULE on the "
            f"command line), pass classes=[{str(path).rpartition('.')[2]}], or {advice}"
        )
        raise ConfigurationError(" ".join(message.split()))
    if not (inspect.isclass(found) and issubclass(found, base)):
        raise ConfigurationError(f"the checkpoint's {what} must be a {base.__name__}, got {path}")
    return found


def find_imported(path: str) -> Any:
    """What an import path names, if its module is already imported; ``None`` otherwise.

    >>> find_imported("ddn_lightning.ER").__name__, find_imported("antigravity.Net")
    ('ER', None)
    """
    module, _, name = path.rpartition(".")
    if module == PACKAGE:
        return vars(import_module(f"{PACKAGE}.api")).get(name)
    # not getattr, for which a module may import another
    return vars(sys.modules[module]).get(name) if sys.modules.get(module) is not None else None


def path_of(cls: type) -> str:
    """Where to import a class from: the package itself for what it exports, so that files may move.

    >>> from ddn_lightning import ER
    >>> path_of(ER)
    'ddn_lightning.ER'
    """
    package = cls.__module__.partition(".")[0]
    is_exported = getattr(sys.modules.get(package), cls.__name__, None) is cls
    return f"{package if is_exported else cls.__module__}.{cls.__qualname__}"


def plain(value: object) -> Any:
    """A value as plain data; of what cannot be said so, only its type is kept."""
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, Constructed):
        return construction_of(value)
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return {name: plain(one) for name, one in value.items()}
    return str(value) if isinstance(value, Path) else {NOT_KEPT: path_of(type(value))}


def named(name: str, value: object) -> dict[str, Any]:
    """A value and all its constructor's arguments, defaults included, under flat dotted names, for loggers.

    >>> from ddn_lightning import SmallNet
    >>> named("backbone", SmallNet(width=8))  # doctest: +NORMALIZE_WHITESPACE
    {'backbone': 'ddn_lightning.SmallNet', 'backbone.in_channels': 1, 'backbone.width': 8, 'backbone.feature_dim': 64}
    """
    kind: type
    if isinstance(value, Constructed):
        parameters = full_signature(type(value)).parameters.values()
        defaults = {one.name: one.default for one in parameters if one.default is not one.empty}
        kind, arguments = type(value), {**defaults, **value.constructor_arguments}
    elif isinstance(value, partial) and inspect.isclass(value.func):  # such as an optimizer
        kind, arguments = value.func, value.keywords
    elif isinstance(value, list | tuple) and any(isinstance(one, Constructed) for one in value):  # such as streams
        parts = [named(f"{name}.{place}", one) for place, one in enumerate(value)]
        return {key: argument for part in parts for key, argument in part.items()}
    else:
        kept = plain(value)
        return {name: kept[NOT_KEPT] if _is_left_out(kept) else kept}
    flat = {name: path_of(kind)}
    for key, argument in arguments.items():
        flat |= named(f"{name}.{key}", argument)
    return flat


def _is_left_out(value: object) -> bool:
    return isinstance(value, dict) and NOT_KEPT in value


def _class_of(value: object) -> Any:
    return value.get(CLASS_PATH) if isinstance(value, dict) else None
