"""Partial responses: the `fields` parameter, as in `items(name,size),nextPageToken`."""

from __future__ import annotations

import re
from typing import Any

from tests.standins.storage.errors import invalid

Selection = dict[str, "Selection | None"]


def parse(text: str) -> Selection:
    """Read the subset of the language that has names, commas, parentheses and slashes."""
    tokens = re.findall(r"[A-Za-z0-9_]+|[(),/]|.", text)
    position = 0

    def fail() -> Any:
        raise invalid(f"Invalid field selection {text!r}")

    def one() -> tuple[str, Selection | None]:
        nonlocal position
        if position >= len(tokens) or not re.fullmatch(r"[A-Za-z0-9_]+", tokens[position]):
            fail()
        name = tokens[position]
        position += 1
        if position < len(tokens) and tokens[position] == "/":
            position += 1
            inner, below = one()
            return name, {inner: below}
        if position < len(tokens) and tokens[position] == "(":
            position += 1
            below = several()
            if position >= len(tokens) or tokens[position] != ")":
                fail()
            position += 1
            return name, below
        return name, None

    def several() -> Selection:
        nonlocal position
        found: Selection = {}
        while True:
            name, below = one()
            found[name] = below
            if position >= len(tokens) or tokens[position] != ",":
                return found
            position += 1

    selection = several()
    if position != len(tokens):
        fail()
    return selection


def select(value: Any, selection: Selection) -> Any:
    if isinstance(value, list):
        return [select(item, selection) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: value[key] if below is None else select(value[key], below)
        for key, below in selection.items()
        if key in value
    }
