"""JSON that may hold anything: what is not of the expected kind is as if it were not there.

Standard library only; copied into the image.
"""

from __future__ import annotations

import json
from typing import Any


def parse_object(text: str | bytes | bytearray) -> dict[str, Any] | None:
    """The JSON object that the text is; None: it is none, or is nested too deeply to be read."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def mapping(value: object) -> dict[str, Any]:
    """The value, if it is an object; else an empty one."""
    return value if isinstance(value, dict) else {}


def mappings(value: object) -> list[dict[str, Any]]:
    """The objects in a list; empty for anything else."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def whole_number(value: object) -> int:
    """The number that a label or a field spells, `"4"`; 0 for anything else, which another tool may have written."""
    return int(str(value)) if str(value).isdecimal() and len(str(value)) < 19 else 0


def text(value: object) -> str:
    """The value, if it is a string; else an empty one."""
    return value if isinstance(value, str) else ""
