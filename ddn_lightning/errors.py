"""Mistakes of the user, told apart from mistakes of ours."""

import math
import re

LARGEST = 1e30  # of an option; single precision ends at 3e38


class ConfigurationError(ValueError):
    """What was asked for cannot be done: the message names the value and what was expected.

    The command line shows it without a traceback and exits with code 2.
    """


class SavingError(OSError):
    """Something could not be saved, for want of space perhaps; whatever was saved before is still there."""


class DivergenceError(ArithmeticError):
    """A loss or a weight is not finite: the message names the task, the step, and what to lower.

    The command line shows it without a traceback and exits with code 3. The last checkpoint is from before.
    """

    @classmethod
    def told_by(cls, traceback: str) -> "DivergenceError | None":
        """The one that another process ended by, if its traceback ends so."""
        found = re.search(rf"^{cls.__module__}\.{cls.__name__}: (.+)$", traceback, re.MULTILINE)
        return None if found is None else cls(found[1])


def check_positive(**values: float) -> None:
    """Raise unless every value is above zero and finite.

    >>> check_positive(batch_size=32, lr=0.03)
    >>> check_positive(buffer_size=-5)
    Traceback (most recent call last):
    ddn_lightning.errors.ConfigurationError: buffer_size must be positive, got -5
    """
    for name, value in values.items():
        if not value > 0:
            raise ConfigurationError(f"{name} must be positive, got {value}")
    check_finite(**values)


def check_not_negative(**values: float) -> None:
    """Raise unless every value is zero or above, and finite."""
    for name, value in values.items():
        if not value >= 0:
            raise ConfigurationError(f"{name} must be zero or positive, got {value}")
    check_finite(**values)


def check_fraction(**values: float) -> None:
    """Raise unless every value is between 0 and 1, both included."""
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise ConfigurationError(f"{name} must be between 0 and 1, got {value}")


def check_momentum(**values: float) -> None:
    """Raise unless every value is zero or above and below 1: from 1 on, a step never dies away."""
    for name, value in values.items():
        if not 0 <= value < 1:
            raise ConfigurationError(f"{name} must be zero or above and below 1, got {value}")


def check_finite(**values: float) -> None:
    """Raise if any value is infinite, not a number, or so large that computing with it gives such."""
    for name, value in values.items():
        if not math.isfinite(value):
            raise ConfigurationError(f"{name} must be finite, got {value}")
        if abs(value) > LARGEST:
            raise ConfigurationError(f"{name} must be at most {LARGEST:g}, got {value}")
