"""The fixtures of the package's tests."""

from tests.conftest import (  # noqa: F401
    _drawn_only_where_asked_for,
    _same_start,
    drawn,
    fit,
    make_trainer,
    recorded_runs,
)
