"""What hvdcloud.yaml alone may not decide: it may come with a project that was cloned from anywhere.

A folder of this machine that the nodes write to, and files outside of the project can be named by a flag or an
environment variable, which are the user's own; a file may name what is below its own folder. No key names a server that
gets the user's credentials.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel

from hvdcloud.config.types import is_host_path

ENV_PREFIX = "HVDCLOUD_"
HOSTS = ("ssh", "hosts")
"""Machines on which nodes are made: a file may name them, and the user is asked once (cluster/confirm_hosts.py)."""
BUCKET = ("checkpoints", "bucket")
Key = tuple[str, ...]


def variable(key: Key) -> str:
    """The environment variable of a key."""
    return ENV_PREFIX + "__".join(key).upper()


def refused(config: BaseModel, written: Mapping[Key, str], *, project: Path) -> Iterator[tuple[Key, str, str]]:
    """Key, reason and way out of each value that a file may not have.

    Args:
        written: the kind of place (`environment`, `flag`, …) of each key, as far as it is known. A key without one
            counts as the file's: YAML's merge keys bring in values that are written elsewhere.
        project: the folder of the file.
    """
    for key, value, is_path in _values(config):
        # A data set is also written as the text of its source.
        shown = key[:-1] if key[0] == "data" else key
        if written.get(key, written.get(shown)) in ("environment", "flag"):
            continue
        if key == BUCKET and value.startswith("file:"):
            out = f"take it out; or, if nodes may write there: export {variable(key)}={shlex.quote(value)}"
            yield key, f"{value} is a folder of this machine, and nodes may change everything in it", out
        elif is_path and key != BUCKET and (outside := _outside(value, project, mounted=key[0] == "data")):
            out = f"move it there; or, if nodes and builds may read it: export {variable(shown)}={shlex.quote(value)}"
            yield shown, outside, out


def host_path(value: str, project: Path) -> Path:
    """The file or folder of this machine that a key names, without links and `..` on its way."""
    path = unquote(urlsplit(value).path) if value.startswith("file://") else value
    return Path(os.path.realpath(project / path))


def _outside(value: str, project: Path, *, mounted: bool) -> str | None:
    """Why a file may not name this path; None: it may, since it is in the project's folder and not git's own.

    Args:
        mounted: ranks get all that is in it, so it may not be the project's folder itself.
    """
    root = Path(os.path.realpath(project))
    try:
        real = host_path(value, root)
    except ValueError:  # No file system takes such a name.
        return f"{value!r} cannot be looked at"
    below = root in real.parents or (real == root and not mounted)
    if below and ".." not in Path(value).parts and ".git" not in real.relative_to(root).parts:
        return None
    return f"{value} leads to {real}, which is not below the project's folder {root}"


def _values(section: BaseModel, above: Key = ()) -> Iterator[tuple[Key, str, bool]]:
    """Every text of a configuration, by its key, and whether it may name a file or folder of this machine."""
    for name, field in type(section).model_fields.items():
        value: Any = getattr(section, name)
        inner = value.items() if isinstance(value, dict) else [(None, value)]
        for part, each in inner:
            key = (*above, name) if part is None else (*above, name, part)
            if isinstance(each, BaseModel):
                yield from _values(each, key)
            elif isinstance(each, str):
                yield key, each, is_host_path(field)
