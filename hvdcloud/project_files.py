"""Which files of a project's folder leave the laptop: for the nodes, and for the build of `image.dockerfile`.

.gitignore means what it means for Git, .dockerignore what it means for Docker. Files with credentials
(private_files.py) are sent only if a line of .dockerignore that begins with ! names them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdcloud.errors import UsageError
from hvdcloud.private_files import private_part

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

DOCKERIGNORE = ".dockerignore"
GITIGNORE = ".gitignore"
NEVER_CODE = (".git", ".venv", "__pycache__", ".DS_Store")
_REPORT = re.compile(r"report-\d{8}-\d{6}-[0-9a-f]+\.html")  # As `hvdcloud report` calls them.


Withheld = Callable[[str], object]
"""Called with the relative path of each private file, or of the folder that makes it one."""


def _ignore(_: str) -> None:
    pass


def home_folder() -> Path | None:
    """The user's home folder, without links; None: a user without a name and without HOME has none."""
    try:
        return Path(os.path.realpath(Path.home()))
    except RuntimeError:
        return None


def holds_home(folder: Path) -> bool:
    """Whether a folder is the user's home folder, or one above it."""
    home, real = home_folder(), Path(os.path.realpath(folder))
    return home is not None and (real == home or real in home.parents)


def code_files(root: Path, *, withheld: Withheld = _ignore) -> Iterator[Path]:
    """Files and links that nodes get: what neither .gitignore nor .dockerignore excludes.

    Raises:
        UsageError: one of the two cannot be used, or the folder is the home folder or above it.
        OSError: a folder cannot be read.
    """
    _check_root(root)
    docker = _dockerignore(root)
    for path, is_folder in _walk(root, root, [], docker, withheld):
        if not is_folder:
            yield path


def build_files(root: Path, *, withheld: Withheld = _ignore) -> Iterator[Path]:
    """What the build of `image.dockerfile` gets: files, links, and folders of which nothing else is sent.

    That is what .dockerignore does not exclude.

    Without a .dockerignore, what .gitignore excludes is left out, as `gcloud builds submit` does: pulled checkpoints
    are no part of an image.

    Raises:
        UsageError, OSError: as `code_files`.
    """
    _check_root(root)
    docker = _dockerignore(root)
    for path, _ in _walk(root, root, None if docker.is_file else [], docker, withheld):
        yield path


def _check_root(root: Path) -> None:
    if holds_home(root):
        message = f"{root} holds the home folder, and every file in the project's folder would be sent"
        raise UsageError(message, hint="mkdir project, and move hvdcloud.yaml and the training script there")


@dataclass(frozen=True, slots=True)
class _Dockerignore:
    """What a .dockerignore excludes.

    Attributes:
        is_file: there is one.
        excludes: whether it excludes a path, relative to the project's folder.
        brings_back: a line of it may bring back something in a folder that is excluded.
        names: whether a line with ! names a path: by more than wildcards, and not by a folder above it.
    """

    is_file: bool
    excludes: Callable[[str], bool]
    brings_back: bool
    names: Callable[[str], bool]


def _dockerignore(root: Path) -> _Dockerignore:
    file = root / DOCKERIGNORE
    if not file.is_file():
        return _Dockerignore(is_file=False, excludes=lambda _: False, brings_back=False, names=lambda _: False)
    # Docker's own rules, see https://docs.docker.com/build/concepts/context/#syntax
    from docker.utils.build import Pattern, PatternMatcher

    lines = [line.strip() for line in _lines(file) if not line.startswith("#")]
    patterns = [line for line in lines if line]
    matcher: Any = PatternMatcher(patterns)
    named: list[Any] = [Pattern(pattern[1:]) for pattern in patterns if pattern.startswith("!")]
    named = [pattern for pattern in named if pattern.dirs and pattern.dirs[-1].strip("*?.")]
    return _Dockerignore(
        is_file=True,
        excludes=lambda path: bool(matcher.matches(path)),
        brings_back=any(pattern.startswith("!") for pattern in patterns),
        names=lambda path: any(pattern.match(path) for pattern in named),
    )


def _walk(
    root: Path,
    folder: Path,
    git: list[tuple[Path, GitIgnoreSpec]] | None,
    docker: _Dockerignore,
    withheld: Withheld,
) -> Iterator[tuple[Path, bool]]:
    """Each path that stays, with whether it is a folder; of folders only those in which nothing stays.

    Args:
        git: the .gitignore files above `folder`; None: they do not count.
    """
    file = folder / GITIGNORE
    if git is not None and file.is_file():
        git = [*git, (folder, _gitignore(file))]
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    empty = True
    for entry in found:
        path = Path(entry.path)
        if entry.name in NEVER_CODE or _REPORT.fullmatch(entry.name):
            continue
        is_folder = entry.is_dir(follow_symlinks=False)
        if git and _git_ignored(path, is_folder=is_folder, specs=git):
            continue
        relative = path.relative_to(root).as_posix()
        excluded = docker.excludes(relative)
        if is_folder:
            if not excluded or docker.brings_back:
                for each in _walk(root, path, git, docker, withheld):
                    empty = False
                    yield each
        elif not excluded:
            empty = False
            private = private_part(relative, path)
            if private is None or _is_named(relative, private, docker):
                yield path, False
            else:
                withheld(private)
    if empty and folder != root and not docker.excludes(folder.relative_to(root).as_posix()):
        yield folder, True


def _is_named(path: str, private: str, docker: _Dockerignore) -> bool:
    """Whether .dockerignore names a private file, or the part of its path that makes it one, or one between them."""
    parts = path.split("/")
    return any(docker.names("/".join(parts[:end])) for end in range(private.count("/") + 1, len(parts) + 1))


def _gitignore(file: Path) -> GitIgnoreSpec:
    from pathspec import GitIgnoreSpec

    try:
        return GitIgnoreSpec.from_lines(_lines(file))
    except ValueError as error:
        raise _unusable(file, error) from error


def _git_ignored(path: Path, *, is_folder: bool, specs: list[tuple[Path, GitIgnoreSpec]]) -> bool:
    """The deepest file that mentions the path decides, as in Git."""
    for base, spec in reversed(specs):
        relative = path.relative_to(base).as_posix() + ("/" if is_folder else "")
        include = spec.check_file(relative).include
        if include is not None:
            return include
    return False


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise _unusable(file, error) from error


def _unusable(file: Path, error: Exception) -> UsageError:
    return UsageError(f"{file} cannot be used: {error}", hint=f"fix {file}")
