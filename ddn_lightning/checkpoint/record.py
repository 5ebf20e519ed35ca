"""The method's record in a checkpoint."""

from typing import Any

from ddn_lightning.checkpoint import checks
from ddn_lightning.checkpoint.construction import CLASS_PATH, INIT_ARGS
from ddn_lightning.checkpoint.loops import FORMAT
from ddn_lightning.errors import ConfigurationError

CHECKPOINT_KEY, MODEL, TRANSFORM = "ddn_lightning", "model", "transform"  # the record, and entries of it
EXTRA_STATE = "_extra_state"  # torch's key for get_extra_state in a state dict
PARTS, CALIBRATED = "parts", "calibrated_statistics"  # entries of the record
PROGRESS, BATCH_NORM, BUFFER_SIZE = "progress", "batch_norm", "buffer_size"  # entries of the extra state


def checked_record(record: object, method: str) -> dict[str, Any]:
    """The method's record, checked. Raise if it is of another method."""
    if record is None:
        raise ConfigurationError("this checkpoint was not written by a method of ddn_lightning")
    saved = checks.mapping("record", record)
    if saved.get("format") != FORMAT:
        raise ConfigurationError(
            f"the checkpoint must be of format {FORMAT}, got {saved.get('format', 1)}: train again"
        )
    checks.mapping("record", saved, ("method", "num_classes", "sequence", PARTS))
    if saved["method"] != method:
        raise ConfigurationError(f"expected a checkpoint of {method}, got one of {saved['method']}")
    return saved


def model_of(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """The class and the arguments of the method that wrote a checkpoint."""
    if CHECKPOINT_KEY not in checkpoint:
        raise ConfigurationError("this checkpoint was not written by a method of ddn_lightning")
    record = checks.mapping("record", checkpoint[CHECKPOINT_KEY], (MODEL,))
    return checks.mapping("model", record[MODEL], (CLASS_PATH, INIT_ARGS))


def check_number_of_classes(record: dict[str, Any], num_classes: int, may_be_fewer: bool) -> None:
    """Raise if the record is of another number of classes, or of more if it may be fewer."""
    saved = record["num_classes"]
    if saved != num_classes and not (may_be_fewer and saved < num_classes):
        raise ConfigurationError(f"expected a checkpoint for {num_classes} classes, got one for {saved}")


def progress_in(checkpoint: dict[str, Any]) -> Any:
    """The saved progress of the method."""
    return checkpoint["state_dict"][EXTRA_STATE][PROGRESS]
