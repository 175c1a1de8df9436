"""Text that stays text in a page. Pure."""

from __future__ import annotations

import re
from html import escape

# Neither HTML nor XML has a way to write these.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


def text(value: object) -> str:
    """Any value as text for between tags or inside an attribute's quotes."""
    return escape(_FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", str(value)))
