"""Conditions of IAM policies: the part of CEL that they are written in, as far as ours use it."""

from __future__ import annotations

import re
from types import SimpleNamespace


class _Text(str):
    """A string of IAM's part of CEL: https://cloud.google.com/iam/docs/conditions-attribute-reference"""

    def startsWith(self, text: str) -> bool:
        return self.startswith(text)

    def endsWith(self, text: str) -> bool:
        return self.endswith(text)

    def extract(self, template: str) -> _Text:
        """What is in the place of `{…}`, from the first place where what is before it is; "" if there is none."""
        before, _, rest = template.partition("{")
        after = rest.partition("}")[2]
        _, found, tail = self.partition(before) if before else ("", "x", self)
        end = tail.find(after) if after else len(tail)
        return _Text(tail[:end] if found and end >= 0 else "")


def holds(expression: str, *, name: str, kind: str) -> bool:
    """Whether a condition holds for a resource, by its full name and its type (`compute.googleapis.com/Disk`)."""
    resource = SimpleNamespace(name=_Text(name), type=_Text(kind))
    parts = re.split(r'("[^"]*")', expression)
    python = "".join(
        part if part.startswith('"') else re.sub(r"!(?!=)", " not ", part.replace("&&", " and ").replace("||", " or "))
        for part in parts
    )
    return bool(eval(python, {"__builtins__": {}}, {"resource": resource}))
