"""A run's configuration in YAML: loaded safely, and compared with another."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ddn_lightning.errors import ConfigurationError
from ddn_lightning.runs.files import read_regular

MOST_CHARACTERS = 1_000_000
MOST_VALUES = 100_000  # with aliases expanded
MOST_NESTED = 100  # with aliases expanded
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's is ten times faster
COMPARED = {"model", "data", "seed_everything", "trainer.precision", "trainer.devices", "trainer.num_nodes"}
COMPARED |= {"trainer.limit_train_batches", "trainer.limit_val_batches", "trainer.overfit_batches"}
RESTORED = ("seed_everything",)  # the checkpoint contains the random streams


@dataclass
class _Extent:
    """Number of values and depth of nesting, with aliases expanded."""

    values: int = 1
    depth: int = 1
    anchor: str | None = None

    def add(self, other: "_Extent") -> None:
        self.values += other.values
        self.depth = max(self.depth, 1 + other.depth)
        if self.values > MOST_VALUES or self.depth > MOST_NESTED:
            raise yaml.YAMLError(
                f"must not hold more than {MOST_VALUES} values, {MOST_NESTED} deep, with aliases expanded"
            )


def load_yaml(text: str) -> Any:
    r"""Load YAML safely.

    >>> load_yaml("a: &x [1, 2]\nb: *x")
    {'a': [1, 2], 'b': [1, 2]}

    Raises:
        yaml.YAMLError: If it is not YAML, or larger than any configuration.
    """
    check_extent(text)
    return yaml.load(text, LOADER)  # noqa: S506  # a safe loader in both cases


def read_settings(path: Path) -> dict[str, Any]:
    """The settings in a configuration file.

    Raises:
        ConfigurationError: If it is not a regular UTF-8 file with a YAML mapping.
    """
    try:
        settings = load_yaml(read_regular(path, MOST_CHARACTERS).decode())
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ConfigurationError(f"{path} must be a configuration file in YAML and UTF-8: {reason}") from error
    if not isinstance(settings, dict):
        found = "nothing" if settings is None else f"a {type(settings).__name__}"
        raise ConfigurationError(f"{path} must hold settings, such as 'seed_everything: 1', got {found}")
    return settings


def check_extent(text: str) -> None:
    """Raise a ``yaml.YAMLError`` if a text is too large with its aliases expanded, without expanding them."""
    if len(text) > MOST_CHARACTERS:
        raise yaml.YAMLError(f"must not be longer than {MOST_CHARACTERS} characters")
    known: dict[str, _Extent] = {}
    around = [_Extent()]
    for event in yaml.parse(text, LOADER):
        if isinstance(event, yaml.AliasEvent):
            if any(extent.anchor == event.anchor for extent in around):
                raise yaml.YAMLError(f"must not contain itself, as *{event.anchor} does")
            around[-1].add(known.get(event.anchor, _Extent()))
        elif isinstance(event, yaml.CollectionStartEvent):
            if len(around) > MOST_NESTED:
                raise yaml.YAMLError(f"must not be nested deeper than {MOST_NESTED}")
            around.append(_Extent(anchor=event.anchor))
        elif isinstance(event, yaml.CollectionEndEvent):
            closed = around.pop()
            around[-1].add(closed)
            if closed.anchor:
                known[closed.anchor] = closed
        elif isinstance(event, yaml.ScalarEvent):
            around[-1].add(_Extent())
            if event.anchor:
                known[event.anchor] = _Extent()


def changes(before: str, now: str) -> list[str]:
    """One line for each value that differs between two configurations in YAML.

    >>> changes("model: {class_path: ER, init_args: {lr: 0.1}}", "model: {class_path: ER, init_args: {lr: 0.2}}")
    ['model.lr is 0.2 from now on, as given (0.1 in the checkpoint)']
    """
    old, new = (flat(load_yaml(text) or {}) for text in (before, now))
    lines = []
    for key in sorted(old.keys() | new.keys()):
        then, given = old.get(key), new.get(key)
        if then == given or not COMPARED & {key, key.partition(".")[0]}:
            continue
        if key in RESTORED:
            lines.append(f"{key} stays {then}, the checkpoint's ({given} given)")
        else:
            name = key.replace(".init_args", "")
            lines.append(f"{name} is {given} from now on, as given ({then} in the checkpoint)")
    return lines


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested dictionaries to dotted keys.

    >>> flat({"model": {"class_path": "ER", "init_args": {"lr": 0.1}}})
    {'model.class_path': 'ER', 'model.init_args.lr': 0.1}
    """
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found
