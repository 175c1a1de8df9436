"""Names of the files that are kept: by what a model is known, how a file's name becomes an object's, and names that are
never checkpoints, what a program would take for a repository and hvdcloud's own.

A version control program runs commands that a repository's configuration names, and a shell's prompt asks it in every
folder that is entered. So nothing that it would take for a repository is sent to the bucket or written to this disk.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping

from hvdcloud.checkpoints.manifest import LONGEST_COMPONENT, file_name
from hvdcloud.units import some

WORKSPACE = "workspace"
"""The folder of a run's objects, and of a pulled run, with what ranks wrote in the project's folder."""
MOST_SENTENCES = 10
_OWN = ".hvdcloud"
_REPOSITORIES = (".git", ".hg")
# NTFS and FAT also know a long name by a short one that they make.
_SHORT_NAMES = re.compile(r"(git|hg)~[0-9]+")
# Together in one folder they are a repository, whatever the folder is called: HEAD with objects and refs, or with a
# file that says where those are.
_HEAD, _OBJECTS, _REFS, _ELSEWHERE = "head", "objects", "refs", "commondir"
_PARTS_OF_A_REPOSITORY = frozenset((_HEAD, _OBJECTS, _REFS, _ELSEWHERE))

_MODEL = re.compile(
    r"(checkpoint|ckpt|model|weight|snapshot|epoch)s?(?![a-z])"
    r"|\.(pt|pth|ckpt|h5|hdf5|keras|safetensors|onnx|tflite|gguf|pdparams|distcp|index|data-\d+-of-\d+|(pth|pt|ckpt)\.tar)$",
    re.IGNORECASE,
)
_NOT_IN_OBJECTS = re.compile(r"[\x00-\x1f\ud800-\udfff]+")
_LONGEST_FILE_NAME = 900
"""Bytes: Cloud Storage takes 1,024, with the names of cluster, run and node."""
_DIGEST = 16


def is_model(name: str) -> bool:
    """Whether a person would take a file of the project's folder for a model or a checkpoint, by its path there."""
    return bool(_MODEL.search(name.removeprefix(f"{WORKSPACE}/")))


def is_checkpoint(name: str) -> bool:
    """Whether a run's object counts as a checkpoint: all that is in the checkpoint directory, and models elsewhere."""
    file = file_name(name)
    return not file.startswith(f"{WORKSPACE}/") or is_model(file)


def checkpoint_name(file: str) -> str:
    """The object's name of a file of the checkpoint directory: its path, but for folders called as WORKSPACE."""
    return f"@{file}" if file.partition("/")[0].lstrip("@") == WORKSPACE else file


def checkpoint_file(name: str) -> str:
    """The path that `checkpoint_name` made this name of."""
    return name[1:] if name.startswith("@") and name.partition("/")[0].lstrip("@") == WORKSPACE else name


def object_safe(file: str) -> str:
    """A path as an object's name can have it: %XX for a byte that none may have, a digest for what is too long."""
    name = _NOT_IN_OBJECTS.sub(_escaped, file)
    name = "/".join(part if len(part.encode()) <= LONGEST_COMPONENT else _cut(part) for part in name.split("/"))
    return name if len(name.encode()) <= _LONGEST_FILE_NAME else f"{_digest(name)}/{name.rpartition('/')[2]}"


def _escaped(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode(errors="surrogateescape"))


def _cut(part: str) -> str:
    return part.encode()[: LONGEST_COMPONENT - _DIGEST - 1].decode(errors="ignore") + f"~{_digest(part)}"


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:_DIGEST]


def own_name(file: str) -> str | None:
    """Why a file of a checkpoint directory is not uploaded, by its first component; None: it may be."""
    top = _folded(file.partition("/")[0])
    return f"names that begin with {_OWN} are hvdcloud's own" if top.startswith(_OWN) else None


def repository_name(component: str) -> str | None:
    """Why no file has this component in its path; None: it may.

    Names are compared as the file systems of macOS and Windows do: without case, without characters that have no width,
    without dots and spaces at the end, and up to the first colon.
    """
    for part in component.split("\\"):
        plain = _folded(part)
        if plain in _REPOSITORIES or _SHORT_NAMES.fullmatch(plain):
            return "it would make its folder a repository, whose configuration can run commands"
    return None


def refusals(names: Iterable[str], *, present: Callable[[str], Collection[str]] = lambda folder: ()) -> dict[str, str]:
    """Those of a run's object names that never become files, each with the reason.

    Args:
        names: relative to `CLUSTER/RUN/`, or to a checkpoint directory.
        present: what a folder ("" or ending in "/") has on the disk already, which may complete a repository.
    """
    refused: dict[str, str] = {}
    children: dict[str, set[str]] = {}
    suspicious: dict[str, list[str]] = {}
    for name in names:
        *folders, _ = parts = name.split("/")
        why = own_name(file_name(name)) or next(filter(None, map(repository_name, parts)), None)
        if why is not None:
            refused[name] = why
            continue
        for depth, part in enumerate(parts):
            if (plain := _folded(part)) in _PARTS_OF_A_REPOSITORY:
                folder = "".join(f"{each}/" for each in folders[:depth])
                children.setdefault(folder, set()).add(plain)
                suspicious.setdefault(folder, []).append(name)
    for folder, found in children.items():
        found |= _PARTS_OF_A_REPOSITORY.intersection(map(_folded, present(folder)))
        if _HEAD in found and (_ELSEWHERE in found or {_OBJECTS, _REFS} <= found):
            why = f"with HEAD, objects and refs {folder or 'its folder'} would be a bare Git repository"
            refused.update(dict.fromkeys(suspicious[folder], why))
    return refused


def sentences(refused: Mapping[str, str], what: str) -> list[str]:
    """`a/.git/config and 3 more: not uploaded, since …`, one for each reason, few enough to read."""
    found: list[str] = []
    for why in sorted(set(refused.values())):
        names = some(sorted(name for name, reason in refused.items() if reason == why), most=1)
        # A name may have bytes that are no text.
        found.append(f"{names}: {what}, since {why}".encode(errors="backslashreplace").decode())
    if len(found) > MOST_SENTENCES:
        found[MOST_SENTENCES:] = [f"and {len(found) - MOST_SENTENCES} more reasons like these"]
    return found


def clashes(names: Iterable[str], *, ignores_case: bool) -> dict[str, str]:
    """Those of a run's object names that can't be on a disk beside the others, each with the reason: a file can't have
    the name of a folder, and where case is ignored, names that differ in it only are one.

    A bucket can hold all of them. Of those that clash, the first in the order of names is not named here.
    """
    found: dict[str, str] = {}
    first: dict[str, str] = {}
    folders: dict[str, str] = {}
    for name in sorted(set(names)):
        key = unicodedata.normalize("NFC", name).casefold() if ignores_case else name
        if first.setdefault(key, name) != name:
            found[name] = f"{first[key]} differs from it in case only, which this disk ignores"
            continue
        for end in (index for index, char in enumerate(key) if char == "/"):
            folders.setdefault(key[:end], name)
    for key, name in first.items():
        if key in folders:
            found[name] = f"{folders[key]} needs a folder of this name"
    return found


def _folded(component: str) -> str:
    """As file systems that ignore case, width and endings compare it."""
    if component.isascii():
        plain = component
    else:
        shown = (c for c in unicodedata.normalize("NFKC", component) if unicodedata.category(c) not in ("Cf", "Mn"))
        plain = "".join(shown)
    return plain.casefold().partition(":")[0].rstrip(". ")
