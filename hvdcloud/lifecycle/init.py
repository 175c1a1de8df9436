"""`hvdcloud init`: a project that runs as it is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from hvdcloud.errors import UsageError

TEMPLATES = ("torch", "keras", "torch-elastic", "keras-elastic")


@dataclass(frozen=True, slots=True, kw_only=True)
class InitResult:
    """What was written."""

    folder: Path
    name: str
    files: Sequence[str]


def init(folder: Path, *, template: str, name: str | None) -> InitResult:
    """Write a template's files; nothing that exists is touched.

    Args:
        name: of the cluster; None: made from the folder's name.

    Raises:
        UsageError: no such template, or a file exists already.
    """
    if template not in TEMPLATES:
        raise UsageError(f"there is no template {template!r}", hint=f"one of: {', '.join(TEMPLATES)}")
    source = files("hvdcloud") / "templates" / template
    contents = {entry.name: entry.read_text(encoding="utf-8") for entry in source.iterdir() if entry.is_file()}
    taken = sorted(entry for entry in contents if (folder / entry).exists())
    if taken:
        raise UsageError(f"{folder / taken[0]} already exists", hint="name an empty folder: hvdcloud init DIR")
    name = name or _name_from(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for entry, text in contents.items():
            if entry == "hvdcloud.yaml":
                text = re.sub(r"(?m)^name: \S+", f"name: {name}", text, count=1)
            (folder / entry).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}", hint="name another folder") from error
    return InitResult(folder=folder, name=name, files=sorted(contents))


def _name_from(folder: Path) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")[:40].strip("-")
    return name if re.match(r"[a-z]", name) else "digits"
