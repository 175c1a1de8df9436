"""Which of a project's files a build needs so that pip can install the requirements there, in the project's folder.

What a line means is pip's to say. Here lines are only searched for paths: what they name is sent, and what no build can
have is refused before one begins.
"""

from __future__ import annotations

import argparse
import codecs
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from hvdcloud.config.file import CONFIG_FILE
from hvdcloud.errors import UsageError
from hvdcloud.image.plan.context import Context, Entry, file_entry
from hvdcloud.private_files import refuse_private
from hvdcloud.project_files import code_files

_COMMENT = re.compile(r"(?m)(?:^|[^\S\n]+)#.*$")
_NAMED = re.compile(r"^\s*[\w.-]+\s*(?:\[[^]]*\]\s*)?@\s*")
_EXTRAS = re.compile(r"(?:\[[^]]*\])?(?:#.*)?$")
_PATH = re.compile(r".*/.*|\..*|file:.*|.*\.(?:whl|zip|tgz|tar\.\w+)")
_FILE_URL = re.compile(r"(?:\w+\+)?file:(?://(?:localhost)?(?=/))?", re.IGNORECASE)
_OPTIONS = argparse.ArgumentParser(add_help=False, exit_on_error=False)
for _name in ("requirement", "constraint", "editable", "find-links"):
    _OPTIONS.add_argument(f"-{_name[0]}", f"--{_name}", action="append", default=[])


def read(project_dir: Path, requirements: str, *, own_base: bool = False) -> Context | None:
    """What is sent for `image.requirements`, a file below `project_dir`, as `project/…`; None: it has only comments.

    Args:
        own_base: the image is built on the user's own, which may have what an absolute path names.

    Raises:
        UsageError: a file is missing or can't be read, or a line names what no build has.
    """
    if not (project_dir / requirements).is_file():
        message = f"{project_dir / requirements} does not exist, but image.requirements names it"
        raise UsageError(message, hint="create it, or set `requirements: null` below `image:` in hvdcloud.yaml")
    root = project_dir.resolve()
    first = _below(root, root / requirements, "image.requirements")
    nested, local = {first: "image.requirements"}, dict[str, tuple[str, bool]]()
    files: dict[str, Entry] = {}
    empty = True
    try:
        while waiting := nested.keys() - files.keys():
            name = min(waiting)
            files[name] = _file(root, name, nested[name])
            for number, line in _lines(root / name):
                empty, where = False, f"{root / name}, line {number}"
                for option, path in _paths(line, where, own_base=own_base):
                    beside, here = (root / name).parent / path, root / path
                    if option in ("requirement", "constraint"):
                        nested.setdefault(_below(root, beside, where), where)
                    elif option != "find_links":
                        local[_below(root, here, where)] = where, option == "editable"
                    elif found := next((each for each in (beside, here) if each.exists()), None):
                        local[_below(root, found, where)] = where, False
        if empty:
            return None
        code = {path.relative_to(root).as_posix(): path for path in code_files(root)} if local else {}
        decisive: set[str] = set()
        for path, (where, editable) in local.items():
            if not (root / path).is_dir():
                files[path] = _file(root, path, where)
                continue
            real = _below(root, (root / path).resolve(), where)
            below = {each for each in code if real == "." or each.startswith(f"{real}/")} - {CONFIG_FILE}
            if not below:
                message = f"{where}: {path} is empty, or .gitignore or .dockerignore excludes it"
                raise UsageError(message, hint=f"take {path} out of there: what they exclude is not sent")
            # Of an editable package only a link is installed, to what `run` sends.
            decisive |= {each for each in below if not editable or _describes(each, real)}
        entries = {path: file_entry(code[path], f"project/{path}") for path in code.keys() - files.keys()}
    except OSError as error:
        message = f"{error.filename} can't be read for image.requirements: {error.strerror}"
        raise UsageError(message, hint="correct its permissions") from error
    return Context(
        hashed=(*files.values(), *(entry for path, entry in entries.items() if entry and path in decisive)),
        unhashed=tuple(entry for path, entry in entries.items() if entry and path not in decisive),
    )


def digest_of(project_dir: Path, name: str | None, *, includes: bool) -> str:
    """What stands for the content of a file of the project; empty: there is none.

    Args:
        includes: it is a requirements file, and what it names counts too.
    """
    if name is None or not (project_dir / name).is_file():
        return ""
    found = read(project_dir, name, own_base=True) if includes else None
    return (found or Context(hashed=(Entry(path=name, source=project_dir / name),))).digest()


def _describes(path: str, package: str) -> bool:
    """Whether a file may decide how a package is installed, whatever its modules hold."""
    folder, name = os.path.split(path)
    return (folder or ".") == package and (name == "setup.py" or name.endswith((".toml", ".cfg", ".in", ".txt")))


def _file(root: Path, name: str, where: str) -> Entry:
    """A file that is named, whether or not it is ignored."""
    file = root / name
    if not file.is_file():
        raise UsageError(f"{where}: {file} does not exist", hint="create it, or correct that line")
    refuse_private(os.path.relpath(file.resolve(), root), file, key="image.requirements")
    return Entry(path=f"project/{name}", source=file)


def _below(root: Path, path: Path, where: str) -> str:
    """A path relative to the project's folder."""
    relative = os.path.relpath(path, root)
    if f"{relative}/".startswith("../"):
        message = f"{where}: {os.path.normpath(path)} is not below the project's folder {root}, so it can't be sent"
        raise UsageError(message, hint="move it into the project, and correct that line")
    return relative


def _paths(line: str, where: str, *, own_base: bool) -> Iterator[tuple[str, str]]:
    """The paths that a line names, each with its option; "" is a requirement's. Raises UsageError: no build has it."""
    requirement, dash, options = f" {line}".partition(" -")
    try:
        found, _ = _OPTIONS.parse_known_args(shlex.split(dash + options))
    except (ValueError, argparse.ArgumentError):
        return  # pip says what is wrong with it.
    target = _NAMED.sub("", requirement).partition(";")[0].strip()
    named = [("", target)] if _PATH.fullmatch(target) else []
    for option, value in (*named, *((name, value) for name, values in vars(found).items() for value in values)):
        text = _EXTRAS.sub("", value)
        if text.startswith(("git+ssh:", "git+git@")):
            message = f"{where}: {text} needs an SSH key, and a build has none"
            raise UsageError(message, hint="git+https://… if anybody may read it, else a copy in the project: ./NAME")
        url = _FILE_URL.match(text)
        path = unquote(text[url.end() :]) if url else text
        if path.startswith(("/", "~")) and not own_base:
            message = f"{where}: {path} is a path of one machine, and no build of an image has it"
            hint = "write NAME==VERSION, as `pip list --format=freeze` does, or a path in the project's folder: ./NAME"
            raise UsageError(message, hint=hint)
        if "://" not in path and not path.startswith(("/", "~")):
            yield option, path


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """The lines as pip joins them, without comments, each with the number of its first."""
    content = file.read_bytes()
    # As pip does; PowerShell writes UTF-16.
    encoding = "utf-16" if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    try:
        text = content.decode(encoding)
    except UnicodeError as error:
        number = content.count(b"\n", 0, getattr(error, "start", 0)) + 1
        raise UsageError(f"{file}, line {number}: {error}", hint="save the file as UTF-8") from error
    number = 1
    for line in re.split(r"(?<!\\)\n", _COMMENT.sub("", "\n".join(text.splitlines()))):
        if joined := line.replace("\\\n", "").strip():
            yield number, joined
        number += 1 + line.count("\n")
