"""A trained method as a folder for a model hub: safetensors, a configuration in JSON and a model card."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ddn_lightning.checkpoint import checks
from ddn_lightning.checkpoint.parts import MEMORY
from ddn_lightning.checkpoint.record import CALIBRATED, CHECKPOINT_KEY, EXTRA_STATE, PARTS, PROGRESS
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.metrics.accuracy_matrix import summary

WEIGHTS_FILE, CONFIG_FILE, CARD_FILE = "model.safetensors", "config.json", "README.md"
STATE = "state_dict"  # entry of a checkpoint
TENSOR = "tensor"  # key of a reference to a tensor in the configuration
CARD = """---
library_name: ddn-lightning
tags: [continual-learning, image-classification]
---

# {title}

{method} trained on {data}: {tasks} tasks, {classes} classes. Average accuracy {acc}, forgetting {fm}, in percent.

```python
import ddn_lightning

method = ddn_lightning.load("{folder}")
method.predict("photos/").names
```

## Accuracy

A row after each task, a column for each task, in percent{statistics}.

{matrix}

## Classes

{names}
{command}"""


def save_pretrained(checkpoint: Mapping[str, Any], folder: Path, command: str = "") -> None:
    """Write what predictions need of a checkpoint; the stored samples and the optimizer's state are left out.

    Args:
        checkpoint: The checkpoint of a method.
        folder: A new or empty folder.
        command: The command that trained the method, for the model card.
    """
    try:
        from safetensors.torch import save_file
    except ImportError as error:
        raise ConfigurationError("save_pretrained needs safetensors: pip install ddn-lightning[hub]") from error
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(f"folder must be new or empty, got {folder}")
    record = checkpoint[CHECKPOINT_KEY]
    parts = {name: state for name, state in record[PARTS].items() if name != MEMORY}
    tensors: dict[str, Tensor] = {}
    plain = {
        STATE: {name: _plain(value, name, tensors) for name, value in checkpoint[STATE].items()},
        CHECKPOINT_KEY: _plain({**record, PARTS: parts}, CHECKPOINT_KEY, tensors),
    }
    folder.mkdir(parents=True, exist_ok=True)
    copies = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    save_file(copies, folder / WEIGHTS_FILE)
    (folder / CONFIG_FILE).write_text(json.dumps(plain, indent=1) + "\n")
    (folder / CARD_FILE).write_text(_card(checkpoint, folder.name, command))


def read_pretrained(folder: Path) -> dict[str, Any]:
    """The checkpoint in a folder that :func:`save_pretrained` has written; nothing in it is executed."""
    try:
        from safetensors.torch import load
    except ImportError as error:
        raise ConfigurationError(f"{folder} needs safetensors: pip install ddn-lightning[hub]") from error
    try:
        tensors = load((folder / WEIGHTS_FILE).read_bytes())
        found = _restored(json.loads((folder / CONFIG_FILE).read_text()), tensors)
    except Exception as error:  # safetensors raises its own kinds, which differ between releases
        raise ConfigurationError(f"{folder} is damaged, or holds no trained method: {error}") from error
    return checks.mapping("config.json", found, (STATE, CHECKPOINT_KEY))


def _plain(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """A value for JSON, with references to its tensors, which are put into ``tensors``."""
    if isinstance(value, Tensor):
        tensors[name] = value
        return {TENSOR: name}
    if isinstance(value, Mapping):
        return {key: _plain(one, f"{name}/{key}", tensors) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one, f"{name}/{place}", tensors) for place, one in enumerate(value)]
    return value


def _restored(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The value with its tensors."""
    if isinstance(value, dict):
        if value.keys() == {TENSOR}:
            return tensors[value[TENSOR]]
        return {key: _restored(one, tensors) for key, one in value.items()}
    return [_restored(one, tensors) for one in value] if isinstance(value, list) else value


def _card(checkpoint: Mapping[str, Any], title: str, command: str) -> str:
    record, progress = checkpoint[CHECKPOINT_KEY], checkpoint[STATE][EXTRA_STATE][PROGRESS]
    sequence, matrix = record["sequence"], progress["accuracy_matrix"]
    found = {name: f"{float(value):.2f}" for name, value in summary(matrix).items()}
    tasks = range(len(matrix))
    rows = [f"| after task | {' | '.join(f'task {task + 1}' for task in tasks)} |", "|---" * (len(matrix) + 1) + "|"]
    for stage in tasks:
        cells = ("" if value != value else f"{value:.2f}" for value in matrix[stage].tolist())
        rows.append(f"| {stage + 1} | {' | '.join(cells)} |")
    names = sequence["data"]["class_names"] or [str(label) for label in range(record["num_classes"])]
    return CARD.format(
        title=title,
        folder=title,
        method=record["method"],
        data=sequence["name"],
        tasks=len(matrix),
        classes=record["num_classes"],
        acc=found.get("average_accuracy", "unknown"),
        fm=found.get("forgetting", "unknown"),
        statistics=", measured with running BatchNorm statistics" if record.get(CALIBRATED) else "",
        matrix="\n".join(rows),
        names=", ".join(names),
        command=f"\n## Trained by\n\n```bash\n{command}\n```\n" if command else "",
    )
