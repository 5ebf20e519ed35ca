"""Mistakes of the user, told apart from mistakes of ours."""


class ConfigurationError(ValueError):
    """What was asked for cannot be done: the message names the value and what was expected.

    The command line shows it without a traceback and exits with code 2.
    """


class SavingError(OSError):
    """Something could not be saved, for want of space perhaps; whatever was saved before is still there."""


def check_positive(**values: float) -> None:
    """Raise unless every value is above zero.

    >>> check_positive(batch_size=32, lr=0.03)
    >>> check_positive(buffer_size=-5)
    Traceback (most recent call last):
    ddn_lightning.errors.ConfigurationError: buffer_size must be positive, got -5
    """
    for name, value in values.items():
        if not value > 0:
            raise ConfigurationError(f"{name} must be positive, got {value}")


def check_not_negative(**values: float) -> None:
    """Raise unless every value is zero or above."""
    for name, value in values.items():
        if not value >= 0:
            raise ConfigurationError(f"{name} must be zero or positive, got {value}")
