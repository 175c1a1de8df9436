"""Which files of a project's folder leave the laptop: for the nodes, and for the build of `image.dockerfile`.

git says what it ignores; .dockerignore means what it means for `docker build`. Virtual environments are no code.
Files with credentials (private_files.py) are sent only if a line of .dockerignore that begins with ! names them.
"""

from __future__ import annotations

import os
import posixpath
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hvdcloud.errors import UsageError
from hvdcloud.git import git
from hvdcloud.private_files import private_part

DOCKERIGNORE = ".dockerignore"
GITIGNORE = ".gitignore"
NEVER_CODE = (".git", ".venv", "__pycache__", ".DS_Store")
_ENVIRONMENT = frozenset(("pyvenv.cfg", "conda-meta"))
"""What only the folder of a virtual environment has, Python's or Conda's."""
_REPORT = re.compile(r"report-\d{8}-\d{6}-[0-9a-f]+\.html")  # As `hvdcloud report` calls them.
_GIT_FILE_BYTES = 4096

Withheld = Callable[[str], object]
"""Called with the relative path of each private file, or of the folder that makes it one."""


def _holds_home(folder: Path) -> bool:
    """Whether a folder is the user's home folder, or one above it."""
    try:
        home, real = (Path(os.path.realpath(each)) for each in (Path.home(), folder))
    except RuntimeError:  # A user without a name and without HOME has none.
        return False
    return real == home or real in home.parents


def code_files(root: Path, *, withheld: Withheld = lambda _: None) -> Iterator[Path]:
    """Files and links that nodes get: what neither git nor .dockerignore excludes.

    Raises:
        UsageError: git or .dockerignore cannot be used, or the folder is the home folder or above it.
        OSError: a folder cannot be read.
    """
    return _files(root, _read_docker_ignore(root) or _DockerIgnore(), by_git=True, withheld=withheld)


def build_files(root: Path, *, withheld: Withheld = lambda _: None) -> Iterator[Path]:
    """Files and links that the build of `image.dockerfile` gets: what .dockerignore does not exclude.

    Without a .dockerignore, what git ignores is left out, as `gcloud builds submit` does: pulled checkpoints are no
    part of an image.

    Raises:
        UsageError, OSError: as `code_files`.
    """
    docker = _read_docker_ignore(root)
    return _files(root, docker or _DockerIgnore(), by_git=docker is None, withheld=withheld)


def _files(root: Path, docker: _DockerIgnore, *, by_git: bool, withheld: Withheld) -> Iterator[Path]:
    if _holds_home(root):
        message = f"{root} holds the home folder, and every file in the project's folder would be sent"
        raise UsageError(message, hint="mkdir project, and move hvdcloud.yaml and the training script there")
    named = [line for line in docker.lines if line.brings_back and line.text.rpartition("/")[2].strip("*?.")]

    @cache
    def is_code(folder: Path) -> bool:
        """Whether a folder may have code in it, as far as its name and the names in it tell."""
        if folder == root:
            return True
        is_environment = any((folder / name).exists() for name in _ENVIRONMENT)
        return is_code(folder.parent) and folder.name not in NEVER_CODE and not is_environment

    ask_git = by_git and (_repository_of(root) is not None or any(root.rglob(".git*")))
    for path in _listed_by_git(root) if ask_git else _walk(root, is_code, docker):
        relative = path.relative_to(root).as_posix()
        if not is_code(path.parent) or path.name in NEVER_CODE or _REPORT.fullmatch(path.name):
            continue
        if docker.state(relative)[0]:
            continue
        private = private_part(relative, path)
        if private is None or _is_named(named, relative, private):
            yield path
        else:
            withheld(private)


def _walk(root: Path, is_code: Callable[[Path], bool], docker: _DockerIgnore) -> Iterator[Path]:
    """The files and links of a folder; what is excluded is not looked into."""

    def fail(error: OSError) -> None:
        raise error

    for above, folders, names in os.walk(root, onerror=fail):
        there = [Path(above, name) for name in folders]
        links = [path for path in there if path.is_symlink()]
        folders[:] = [
            path.name
            for path in there
            if path not in links and is_code(path) and not docker.hides(path.relative_to(root).as_posix())
        ]
        yield from (*links, *(Path(above, name) for name in names))


def _is_named(named: Sequence[_DockerLine], path: str, private: str) -> bool:
    """Whether .dockerignore names a private file, or the part of its path that makes it one, or one between them: by
    more than wildcards, and not by a folder above it."""
    parts = path.split("/")
    some = ["/".join(parts[:end]) for end in range(private.count("/") + 1, len(parts) + 1)]
    return any(line.matches(each) for line in named for each in some)


def excluding_line(root: Path, path: str) -> str | None:
    """Which line of which file excludes a file of the project: in words; None: none does."""
    docker = _read_docker_ignore(root) or _DockerIgnore()
    excluded, about = docker.state(path)
    if excluded:
        line = [line for line, does in zip(docker.lines, about, strict=True) if does][-1]
        return f"line {line.number} of {DOCKERIGNORE} ({line.text})"
    said = _ask_git(root, "check-ignore", "--verbose", path=path)[1].partition("\t")[0]
    file, _, rest = said.partition(":")
    number, _, text = rest.partition(":")
    return f"line {number} of {file} ({text})" if text and not text.startswith("!") else None


# --- .dockerignore --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _DockerLine:
    """A line of a .dockerignore.

    Attributes:
        text: without a ! in front.
        matches: whether it is about a path, relative to the project's folder.
    """

    number: int
    text: str
    brings_back: bool
    matches: Callable[[str], object]


class _DockerIgnore:
    """A .dockerignore; without lines, nothing is excluded."""

    def __init__(self, lines: Sequence[_DockerLine] = ()) -> None:
        self.lines = lines
        self._known: dict[str, tuple[bool, Sequence[bool]]] = {"": (False, [False] * len(lines))}

    def state(self, path: str) -> tuple[bool, Sequence[bool]]:
        """Whether a path is excluded, and which lines are about it.

        https://github.com/moby/patternmatcher/blob/main/patternmatcher.go, MatchesUsingParentResults
        """
        if path not in self._known:
            excluded, about = False, list(self.state(posixpath.dirname(path))[1])
            for index, line in enumerate(self.lines):
                about[index] = about[index] or (line.brings_back == excluded and bool(line.matches(path)))
                if about[index]:
                    excluded = not line.brings_back
            self._known[path] = excluded, about
        return self._known[path]

    def hides(self, folder: str) -> bool:
        """Whether nothing in a folder is sent."""
        return self.state(folder)[0] and not any(line.brings_back for line in self.lines if line.number)


def _read_docker_ignore(root: Path) -> _DockerIgnore | None:
    """The .dockerignore of a folder, read as Docker does; None: there is none.

    https://github.com/moby/patternmatcher/blob/main/ignorefile/ignorefile.go
    """
    file = root / DOCKERIGNORE
    if not file.is_file():
        return None
    lines = []
    try:
        text = file.read_bytes().decode("utf-8-sig", "surrogateescape")
        if "\0" in text:
            raise ValueError("it is not UTF-8")
        for number, line in enumerate(text.split("\n"), 1):
            pattern = line.strip()
            if line.startswith("#") or not pattern:
                continue
            if pattern != "!":
                mark = "!" if pattern.startswith("!") else ""
                pattern = mark + posixpath.normpath(pattern[len(mark) :].strip()).lstrip("/")
            # As Docker does it, after that: the / of `/!name` does not escape the mark.
            brings_back = pattern.startswith("!")
            pattern = posixpath.normpath(pattern.strip())[brings_back:]
            if not pattern:
                raise ValueError(f"line {number} has nothing after !")
            matches = _docker_pattern(pattern)
            lines.append(_DockerLine(number=number, text=pattern, brings_back=brings_back, matches=matches))
    except (OSError, ValueError, re.error) as error:
        raise UsageError(f"{file} cannot be used: {error}", hint=f"fix {file}") from error
    # Docker sends it whatever it says.
    own = _DockerLine(number=0, text=DOCKERIGNORE, brings_back=True, matches=DOCKERIGNORE.__eq__)
    return _DockerIgnore([*lines, own] if lines else [])


def _docker_pattern(pattern: str) -> Callable[[str], object]:
    """Whether a path matches.

    https://github.com/moby/patternmatcher/blob/main/patternmatcher.go, Pattern.compile and Pattern.match
    """
    special = re.compile(r"[*?\[\]\\]")
    if not special.search(pattern):
        return pattern.__eq__
    if pattern.startswith("**") and not special.search(pattern[2:]):
        tail = pattern[2:]
        return lambda path: path.endswith(tail) or path == tail.removeprefix("/")

    def translated(found: re.Match[str]) -> str:
        token = found[0]
        if token.startswith("**"):
            return r"(.*/)?" if found.end() < len(pattern) else r"(?s:.*)"
        return {"*": "[^/]*", "?": "[^/]"}.get(token) or (token if token[0] in "\\[" else re.escape(token))

    return re.compile(re.sub(r"\*\*/?|\*|\?|\\.|[.+()|{}$]", translated, pattern)).fullmatch


# --- git ------------------------------------------------------------------------------------------------------------


def _is_repository(folder: Path) -> bool:
    """Whether a folder is a repository, its own or a submodule's, or another worktree of one."""
    store = folder / ".git"
    if store.is_file():
        with store.open("rb") as file:
            store = folder / os.fsdecode(file.read(_GIT_FILE_BYTES)).removeprefix("gitdir:").strip()
    return os.path.lexists(store / "HEAD") and any((store / name).exists() for name in ("objects", "commondir"))


def _repository_of(folder: Path) -> Path | None:
    """The folder of the repository that a folder belongs to."""
    real = Path(os.path.realpath(folder))
    return next((each for each in (real, *real.parents) if _is_repository(each)), None)


def _listed_by_git(folder: Path) -> Iterator[Path]:
    """What git does not ignore in a folder, and in the repositories in it."""
    options = ("-z", "--cached", "--others", "--exclude-standard")
    top, said = _ask_git(folder, "ls-files", *options)
    real = Path(os.path.realpath(folder))
    for name in sorted(set(said.split("\0")[:-1])):
        path = folder / (top / name).relative_to(real)
        if not path.is_dir() or path.is_symlink():
            yield from [path] if os.path.lexists(path) else []
        elif _is_repository(path):
            yield from _listed_by_git(path)
        else:
            yield from (each for each in path.rglob("*") if not each.is_dir())  # It has been one.


def _ask_git(folder: Path, verb: str, *options: str, path: str = "") -> tuple[Path, str]:
    """What git prints of a folder, or a path in it, and the folder to which its paths are relative.

    Outside of repositories it is asked of one in which nothing is.
    """
    real = Path(os.path.realpath(folder))
    top = _repository_of(folder) or real
    try:
        with tempfile.TemporaryDirectory() as empty:
            environment = {}
            if not _is_repository(top):
                for name in ("objects", "refs"):
                    Path(empty, name).mkdir()
                Path(empty, "HEAD").write_text("ref: refs/heads/main\n")
                environment = {"GIT_DIR": empty, "GIT_WORK_TREE": str(real)}
            # Not in the folder itself: git fails in a folder of one that it ignores.
            asked = os.path.relpath(real / path, top) if path else f":(literal){os.path.relpath(real, top)}"
            done = git(top, verb, *options, "--", asked, environment=environment)
    except FileNotFoundError:
        message = f"git, which knows what it ignores in {folder}, is not on this machine's PATH"
        raise UsageError(message, hint="install git") from None
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"git in {folder} has not ended: {error}", hint=f"git -C {folder} status") from None
    # 1: `check-ignore` has found nothing. Of a folder that it cannot read, git only warns.
    if done.returncode > 1 or b"could not open directory" in done.stderr:
        said = done.stderr.decode(errors="replace").strip()
        message = f"git does not say what it ignores in {folder}: {said.partition(chr(10))[0]}"
        raise UsageError(message, hint=f"git -C {folder} status, which says what to do", details=said)
    return top, os.fsdecode(done.stdout)
