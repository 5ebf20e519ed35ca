"""What a resumed run is told otherwise than before, and which value counts."""

from typing import Any

from ddn_lightning.runs.safe_yaml import load_yaml

COMPARED = ("model", "data", "seed_everything")
COMPARED_OF_TRAINER = (
    "precision",
    "limit_train_batches",
    "limit_val_batches",
    "overfit_batches",
    "devices",
    "num_nodes",
)
KEPT = ("seed_everything",)  # a checkpoint brings its random streams along


def changes(before: str, now: str) -> list[str]:
    """One line for each value that differs between two configurations in YAML.

    >>> changes("model: {class_path: ER, init_args: {lr: 0.1}}", "model: {class_path: ER, init_args: {lr: 0.2}}")
    ['model.lr is 0.2 from now on, as given (0.1 in the checkpoint)']
    """
    old, new = (flat(load_yaml(text) or {}) for text in (before, now))
    lines = []
    for key in sorted(old.keys() | new.keys()):
        then, given = old.get(key), new.get(key)
        if then == given or not _is_compared(key):
            continue
        if key in KEPT:
            lines.append(f"{key} stays {then}, the checkpoint's ({given} given)")
        else:
            name = key.replace(".init_args", "")
            lines.append(f"{name} is {given} from now on, as given ({then} in the checkpoint)")
    return lines


def _is_compared(key: str) -> bool:
    group, _, name = key.partition(".")
    return group in COMPARED or (group == "trainer" and name in COMPARED_OF_TRAINER)


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one, with dotted keys.

    >>> flat({"model": {"class_path": "ER", "init_args": {"lr": 0.1}}})
    {'model.class_path': 'ER', 'model.init_args.lr': 0.1}
    """
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found
