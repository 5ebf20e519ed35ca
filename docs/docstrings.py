"""Turns the Sphinx roles of docstrings, such as ``:class:`ER```, into what Markdown shows as code."""

import re
from typing import Any

from griffe import Extension, Object

ROLE = re.compile(r":\w+:`~?(?:[\w.]+\.)?(\w+)`")


class Roles(Extension):
    """Rewrites each docstring before it is parsed."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Replace the roles, and double backticks."""
        if obj.docstring is not None:
            obj.docstring.value = ROLE.sub(r"`\1`", obj.docstring.value).replace("``", "`")
