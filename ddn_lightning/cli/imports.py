"""The modules that a command on a trained run may import: those that the user names, and no other.

A run's checkpoint and configuration name classes. They are found among the modules that are already imported.
"""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from ddn_lightning.checkpoint.construction import CLASS_PATH, find_imported
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.runs.config import load_yaml, read_settings
from ddn_lightning.runs.recorded_run import CONFIG_FILE
from ddn_lightning.runs.run_folder import CHECKPOINTS

OPTION = "--import"
CONFIG_OPTIONS = ("-c", "--config")
CURRENT_FOLDER = ""  # in sys.path
IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")


@contextmanager
def current_folder_on_path() -> Iterator[None]:
    """Find the user's own modules in the current folder, as with ``python -m``; last, to hide no package."""
    if CURRENT_FOLDER in sys.path:
        yield
        return
    sys.path.append(CURRENT_FOLDER)
    try:
        yield
    finally:
        sys.path.remove(CURRENT_FOLDER)


def without_imports(arguments: Sequence[str]) -> list[str]:
    """The arguments without ``--import MODULE``, whose modules are imported, also from the current folder."""
    rest, words = [], iter(arguments)
    for word in words:
        option, equals, value = word.partition("=")
        if option != OPTION:
            rest.append(word)
            continue
        module = value if equals else next(words, "")
        try:
            with current_folder_on_path():
                import_module(module)
        except (ImportError, ValueError, TypeError) as error:  # a relative or an empty name is a wrong type or value
            raise ConfigurationError(f"import must be the name of a module, got {module}: {error}") from error
    return rest


def check_run_configs(arguments: Sequence[str]) -> None:
    """Check the class paths in each configuration file of a run folder among the arguments."""
    for before, word in zip([None, *arguments], arguments, strict=False):
        option, _, value = word.partition("=")
        file = Path(word if before in CONFIG_OPTIONS else value if option in CONFIG_OPTIONS else "")
        if file.name == CONFIG_FILE and file.with_name(CHECKPOINTS).is_dir():
            check_class_paths(file)


def check_class_paths(file: Path) -> None:
    """Raise unless every class that a run's configuration names is found without an import."""
    for name, value in _values(read_settings(file)):
        if os.path.isfile(value) or os.path.isfile(file.parent / value):
            _check_no_settings(file, value)
        if IMPORT_PATH.fullmatch(value) and find_imported(value) is None and (name == CLASS_PATH or _exists(value)):
            raise ConfigurationError(
                f"{file} names {value}, which is not imported: add {OPTION} {value.rpartition('.')[0]}, if you trust it"
            )


def _values(value: Any, name: object = None) -> Iterator[tuple[object, str]]:
    """The strings of a configuration with the names of their options, also those in YAML within a string."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _values(one, key)
    elif isinstance(value, list):
        for one in value:
            yield from _values(one, name)
    elif isinstance(value, str):
        yield name, value.strip()
        try:
            parsed = load_yaml(value)
        except yaml.YAMLError:
            return
        if isinstance(parsed, dict | list):
            yield from _values(parsed, name)


def _check_no_settings(file: Path, value: str) -> None:
    """Raise if a value is the name of another configuration file, which would be read instead of the value."""
    for found in (Path(value), file.parent / value):
        try:
            read_settings(found)
        except ConfigurationError:
            continue
        raise ConfigurationError(f"{file} must be a complete configuration, but it refers to the file {found}")


def _exists(path: str) -> bool:
    """Whether there is a package from which an import path would be imported."""
    package = path.partition(".")[0]
    return package in sys.modules or find_spec(package) is not None
