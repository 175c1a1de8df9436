"""What hvdcloud.yaml alone may not decide: it may come with a project that was cloned from anywhere.

A server that gets the user's credentials, a folder of this machine that the nodes write to, and one with private files
that they read, can be named by a flag or an environment variable, which are the user's own; a file may name only what
does no harm.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from hvdcloud.project_files import holds_home, home_folder

if TYPE_CHECKING:
    from pydantic import BaseModel

ENV_PREFIX = "HVDCLOUD_"
SERVERS = (("gce", "endpoint"), ("image", "remote", "endpoint"))
"""The keys that name a server to which Google credentials are sent."""
HOSTS = ("ssh", "hosts")
"""Machines on which nodes are made: a file may name them, and the user is asked once (cluster/confirm_hosts.py)."""
BUCKET = ("checkpoints", "bucket")
BUCKET_MARKS = (".hvdcloud-tmp", ".hvdcloud")
"""Folders that only a bucket of ours has: in it (storage/folder_tree.py), and in each run's folder."""
_GOOGLE = re.compile(r"https://([a-z0-9-]+\.)+googleapis\.com/?")
_LOOKED_AT = 1000
"""Clusters and runs in which a bucket's mark is looked for."""
_NOTHING = (".DS_Store", "lost+found")
"""What an empty folder may hold: the second is in that of every new disk."""
_SYSTEM = ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr")


def variable(key: tuple[str, ...]) -> str:
    """The environment variable of a key."""
    return ENV_PREFIX + "__".join(key).upper()


def refused(config: BaseModel, written: Mapping[tuple[str, ...], str]) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Key, reason and way out of each value that a file may not have.

    Args:
        written: the kind of place (`environment`, `flag`, …) of each key, as far as it is known. A key without one
            counts as the file's: YAML's merge keys bring in values that are written elsewhere.
    """
    for key in (*SERVERS, BUCKET):
        value = _value(config, key)
        if value is None or written.get(key) in ("environment", "flag"):
            continue
        if key != BUCKET:
            if not google_server(value):
                why = f"{value!r} is not one of Google's servers (https://NAME.googleapis.com), and it would get "
                out = f"if you trust that server: export {variable(key)}=URL"
                yield key, f"{why}this machine's Google credentials", out
        elif value.startswith("file:") and (unfit := unfit_folder(Path(unquote(urlsplit(value).path)))):
            out = f"name an empty folder; or, if nodes may write there: export {variable(key)}=file:///DIR"
            yield key, f"{unfit}, and nodes may change everything in it", out
    yield from _refused_data(config, written)


def _refused_data(config: Any, written: Mapping[tuple[str, ...], str]) -> Iterator[tuple[tuple[str, ...], str, str]]:
    for name, each in config.data.items():
        key = ("data", name)
        kinds = {written.get(key), written.get((*key, "source"))}
        if each.folder is not None and kinds.isdisjoint(("environment", "flag")) and (why := private(each.folder)):
            out = f"if nodes may read it: export {variable(key)}={each.source}"
            yield key, f"{why}, and every rank could read all of it", out


def google_server(url: str) -> bool:
    """Whether a URL is that of one of Google's APIs, and has nothing else in it.

    Not one of Cloud Storage's: anyone can answer from there, with objects of their own.
    """
    return _GOOGLE.fullmatch(url) is not None and "storage" not in url


def unfit_folder(path: Path) -> str | None:
    """Why a file may not name this folder as a bucket; None: it may.

    It may if it is empty or does not exist, or is a bucket of ours; and it is the user's own to write to.
    """
    try:
        return _unfit(path)
    except (OSError, ValueError):  # It may not be read, or no file system takes such a name.
        return f"{str(path)!r} cannot be looked at"


def _unfit(path: Path) -> str | None:
    if holds_home(path):
        return f"{path} holds the home folder"
    folder = Path(os.path.realpath(path))
    if folder.is_dir() and _is_bucket(folder):
        return None
    if reason := private(path):
        return reason
    there = next(each for each in (folder, *folder.parents) if os.path.lexists(each))
    if not os.access(there, os.W_OK):
        return f"{path} is not this user's to write to"
    if folder.is_dir() and any(each.name not in _NOTHING for each in folder.iterdir()):
        return f"{path} holds files that are no checkpoints of hvdcloud's"
    return None


def private(path: Path) -> str | None:
    """Why a folder is likely to hold what only this user or this machine may read; None: it is not."""
    if holds_home(path):
        return f"{path} holds the home folder"
    folder, home = Path(os.path.realpath(path)), home_folder()
    if home is not None and home in folder.parents and folder.relative_to(home).parts[0].startswith("."):
        return f"{path} is in a hidden folder of the home folder"
    if any(Path(each) in (folder, *folder.parents) for each in _SYSTEM):
        return f"{path} is the system's"
    return None


def _is_bucket(folder: Path) -> bool:
    in_it, in_run = BUCKET_MARKS
    try:
        if _is_folder(folder / in_it):
            return True
        return any(_is_folder(mark) for mark in islice(folder.glob(f"*/*/{in_run}"), _LOOKED_AT))
    except OSError:
        return False


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _value(config: Any, key: tuple[str, ...]) -> str | None:
    for part in key:
        config = getattr(config, part)
    value: str | None = config
    return value
