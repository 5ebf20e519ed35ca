"""Precisions in which small differences survive."""

from lightning.pytorch import Trainer

from ddn_lightning.errors import ConfigurationError

PRECISIONS = ("32-true", "64-true", "bf16-mixed")


def check_precision(trainer: Trainer, name: str, lost: str) -> None:
    """Refuse a precision in which gradients through a virtual step are mostly noise, and moving averages stand still.

    Args:
        trainer: The Trainer.
        name: Name of the class that has them.
        lost: What it has.
    """
    if str(trainer.precision) not in PRECISIONS:
        raise ConfigurationError(
            f"precision must be one of {', '.join(PRECISIONS)} with {name}, whose {lost} are lost in rounding "
            f"otherwise, got {trainer.precision}"
        )
