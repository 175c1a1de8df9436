"""Sets keys in a YAML file that a person wrote; comments, order and quotes stay."""

from __future__ import annotations

import io
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdcloud.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One key that got another value; `old` is None where it was not there, or null."""

    key: str
    old: Any
    new: str


def set_keys(text: str, values: Mapping[str, str], *, name: str = "the file") -> tuple[str, Sequence[Change]]:
    """The text with other values (dotted key → value), and which keys changed.

    A new key becomes the first of its section, a new section the last of the file.

    Args:
        name: of the file, for messages.

    Raises UsageError: it is no YAML mapping, or a section of a key is an alias, has an anchor, or is no section.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.comments import CommentedMap
    from ruamel.yaml.error import YAMLError

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 10_000
    yaml.explicit_start = text.startswith("---")
    if found := re.search(r"(?m)^( +)[^ #\r\n-]", text):
        yaml.map_indent = len(found[1])
    if found := re.search(r"(?m)^( *)[^ #\r\n-].*:\s*\n\1( +)- ", text):
        yaml.sequence_indent, yaml.sequence_dash_offset = len(found[2]) + 2, len(found[2])
    # Else `null` is written as nothing.
    yaml.representer.add_representer(
        type(None), lambda this, _: this.represent_scalar("tag:yaml.org,2002:null", "null")
    )
    try:
        tree = yaml.load(text)
    except (YAMLError, ValueError) as error:  # ValueError: a date that cannot be.
        raise UsageError(f"{name} is not YAML: {' '.join(str(error).split())}", hint=f"fix {name}") from None
    before = text if tree is None else ""  # Comments alone are no tree.
    tree = CommentedMap() if tree is None else tree
    changes = []
    for dotted, value in values.items():
        *sections, key = dotted.split(".")
        section = tree
        for part in sections:
            if isinstance(section, CommentedMap) and not section.get(part):
                section[part] = CommentedMap()
            section = section[part] if isinstance(section, CommentedMap) else None
        if not isinstance(section, CommentedMap) or section.yaml_anchor() is not None:
            said = f"{name} is left as it is: {'.'.join(sections) or 'it'} is not a section of keys without an anchor"
            raise _by_hand(said, values)
        old = section.get(key)
        if old == value:
            continue
        if key in section or not sections:
            section[key] = value
        else:
            section.insert(0, key, value)
        changes.append(Change(key=dotted, old=old, new=value))
    if not changes:
        return text, changes
    out = io.StringIO()
    yaml.dump(tree, out)
    return before + out.getvalue(), changes


def edit_file(path: Path, values: Mapping[str, str]) -> Sequence[Change]:
    """Set keys in a file, which is replaced in one move. Raises UsageError: as `set_keys`, or it cannot be written."""
    path = path.resolve()  # A link stays one.
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        text, changes = set_keys(path.read_bytes().decode(), values, name=str(path))
        if changes:
            temporary.write_bytes(text.encode())
            shutil.copymode(path, temporary)
            temporary.replace(path)
    except (OSError, UnicodeDecodeError) as error:
        temporary.unlink(missing_ok=True)
        said = getattr(error, "strerror", None) or error
        raise _by_hand(f"{path} cannot be changed: {said}", values) from error
    return changes


def _by_hand(message: str, values: Mapping[str, str]) -> UsageError:
    keys = "\n".join(f"{key}: {value}" for key, value in values.items())
    return UsageError(message, hint="set the keys above in it by hand", details=keys)
