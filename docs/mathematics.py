"""Turns the formulas of a page into MathML, which browsers show without a script.

Written as GitHub shows them too: ``$$ ... $$`` for a line of its own, and ``$`...`$`` within a line.
"""

import re
from typing import Any

from latex2mathml.converter import convert

LINE = re.compile(r"\$\$(.+?)\$\$", re.S)
INLINE = re.compile(r"\$`(.+?)`\$")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by MkDocs for each page."""
    markdown = LINE.sub(lambda found: f"\n{convert(found[1].strip(), display='block')}\n", markdown)
    return INLINE.sub(lambda found: f"<span>{convert(found[1].strip())}</span>", markdown)
