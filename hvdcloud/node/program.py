"""The node program: the files of this package that run on nodes, and their version. Needs the standard library only."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
_RUNS = ("failure", "launchers", "log_lines", "notice", "progress", "reports", "spec", "stacks", "state")
PARTS = (
    *("__init__.py", "errors.py", "json_values.py", "units.py", "visible.py", "runs/__init__.py"),
    *(f"runs/{name}.py" for name in _RUNS),
    *("storage", "checkpoints", "node"),
)
"""Files and folders below `PACKAGE`."""


def files() -> Iterator[Path]:
    """Every file of the node program, here and on a node, in order."""
    for part in PARTS:
        path = PACKAGE / part
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


@cache
def version() -> str:
    """Twelve hexadecimal digits, the same on this machine and on a node exactly if their node programs are the same."""
    total = hashlib.sha256()
    for file in files():
        content = file.read_bytes()
        total.update(f"{file.relative_to(PACKAGE).as_posix()} {len(content)}\n".encode())
        total.update(content)
    return total.hexdigest()[:12]
