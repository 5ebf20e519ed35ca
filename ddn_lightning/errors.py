"""Messages to the user: errors to act on, with checks of numeric arguments, and notes."""

import difflib
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

FEW = 3  # names that a message lists
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all control characters but tab and line feed
LARGEST = 1e30  # largest value of an option; single precision ends at 3e38


class ConfigurationError(ValueError):
    """The user asked for something that cannot be done: the message names the value and what was expected.

    The command line prints it without a traceback and exits with code 2.
    """


class ClosedTestSetError(ConfigurationError):
    """The test images were asked for while they are closed, as in a search for hyper-parameters."""


class SavingError(OSError):
    """A file could not be saved, for example on a full disk; files saved earlier are intact."""


class DivergenceError(ArithmeticError):
    """A loss or a weight is not finite: the message names the task, the step, and the option to lower.

    The command line prints it without a traceback and exits with code 3. The last checkpoint precedes the divergence.
    """

    @classmethod
    def from_traceback(cls, traceback: str) -> "DivergenceError | None":
        """The error that ended another process, if its traceback names one."""
        found = re.search(rf"^{cls.__module__}\.{cls.__name__}: (.+)$", traceback, re.MULTILINE)
        return None if found is None else cls(found[1])


def check_positive(**values: float) -> None:
    """Raise unless every value is positive and finite.

    >>> check_positive(batch_size=32, lr=0.03)
    >>> check_positive(buffer_size=-5)
    Traceback (most recent call last):
    ddn_lightning.errors.ConfigurationError: buffer_size must be positive, got -5
    """
    _check(values, lambda value: value > 0, "positive")
    check_finite(**values)


def check_not_negative(**values: float) -> None:
    """Raise unless every value is zero or positive, and finite."""
    _check(values, lambda value: value >= 0, "zero or positive")
    check_finite(**values)


def check_fraction(**values: float) -> None:
    """Raise unless every value is in [0, 1]."""
    _check(values, lambda value: 0 <= value <= 1, "between 0 and 1")


def check_share(**values: float) -> None:
    """Raise unless every value is above 0 and below 1."""
    _check(values, lambda value: 0 < value < 1, "above 0 and below 1")


def check_momentum(**values: float) -> None:
    """Raise unless every value is in [0, 1): with a momentum of 1 or more, a step never decays."""
    _check(values, lambda value: 0 <= value < 1, "zero or above and below 1")


def check_choice(choices: Sequence[str], **values: str) -> None:
    """Raise unless every value is one of the choices.

    >>> check_choice(("norm", "value"), gradient_clip_algorithm="nrom")
    Traceback (most recent call last):
    ddn_lightning.errors.ConfigurationError: gradient_clip_algorithm must be one of norm, value, got 'nrom'
    """
    for name, value in values.items():
        if value not in choices:
            raise ConfigurationError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def did_you_mean(name: str, known: Iterable[str], most: int = 1) -> str:
    """The end of a message about an unknown name: those that it shortens, else the most similar ones, or nothing.

    Args:
        name: The unknown name.
        known: All known names.
        most: Number of similar names to list.

    >>> did_you_mean("bufer_size", ["lr", "buffer_size"])
    ' (did you mean buffer_size?)'
    >>> did_you_mean("online", ["setting/online", "recipe/online"])
    ' (did you mean setting/online or recipe/online?)'
    >>> did_you_mean("--see", ["--seed_everything", "--runs"])
    ' (did you mean --seed_everything?)'
    """
    spellings: dict[str, list[str]] = {}
    for one in known:
        for spelling in {one.lower(), one.lower().rpartition("/")[2]}:
            spellings.setdefault(spelling, []).append(one)
    given = name.lower()
    similar = [given] if given in spellings else [one for one in spellings if one.startswith(given)]
    if not 0 < len(similar) <= FEW:
        similar = difflib.get_close_matches(given, spellings, n=most)
    names = dict.fromkeys(one for spelling in similar for one in spellings[spelling])
    return f" (did you mean {' or '.join(names)}?)" if names else ""


def check_returned(name: str, found: object, kind: type) -> None:
    """Refuse what a user's method returns, if it has another class than this."""
    if not isinstance(found, kind):
        raise ConfigurationError(f"{name} must return a {kind.__name__}, got a {type(found).__name__}")


def check_finite(**values: float) -> None:
    """Raise if any value is infinite, nan, or large enough to overflow in computations."""
    _check(values, math.isfinite, "finite")
    _check(values, lambda value: abs(value) <= LARGEST, f"at most {LARGEST:g}")


def _check(values: Mapping[str, float], is_valid: Callable[[float], bool], expected: str) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not hasattr(value, "__float__"):
            raise ConfigurationError(f"{name} must be a number, {expected}, got {value!r}")
        if not is_valid(value):
            raise ConfigurationError(f"{name} must be {expected}, got {value}")


def note(text: str) -> None:
    """Print one line on stderr, on the first rank only."""
    lightning = sys.modules.get("lightning.fabric.utilities.rank_zero")  # a process without it has no other ranks
    if lightning is None or lightning.rank_zero_only.rank == 0:
        print(f"note: {printable(text)}", file=sys.stderr)


def printable(text: str) -> str:
    r"""Text with escaped control characters: a name from a foreign file could command the terminal.

    >>> print(printable("red \x1b[31m"))
    red \x1b[31m
    """
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


@cache
def note_once(text: str) -> None:
    """Print a note once per process, however often its cause occurs."""
    note(text)
