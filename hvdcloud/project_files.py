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
    """Files and links that nodes get: what neither git nor .dockerignore excludes.

    Raises:
        UsageError: git or .dockerignore cannot be used, or the folder is the home folder or above it.
        OSError: a folder cannot be read.
    """
    _check_root(root)
    for path, is_folder in _Walk(root, _docker_lines(root) or (), by_git=True, withheld=withheld).paths(root):
        if not is_folder:
            yield path


def build_files(root: Path, *, withheld: Withheld = _ignore) -> Iterator[Path]:
    """What the build of `image.dockerfile` gets: files, links, and folders of which nothing else is sent.

    That is what .dockerignore does not exclude.

    Without a .dockerignore, what git ignores is left out, as `gcloud builds submit` does: pulled checkpoints are no
    part of an image.

    Raises:
        UsageError, OSError: as `code_files`.
    """
    _check_root(root)
    docker = _docker_lines(root)
    for path, _ in _Walk(root, docker or (), by_git=docker is None, withheld=withheld).paths(root):
        yield path


def _check_root(root: Path) -> None:
    if holds_home(root):
        message = f"{root} holds the home folder, and every file in the project's folder would be sent"
        raise UsageError(message, hint="mkdir project, and move hvdcloud.yaml and the training script there")


class _Walk:
    """Each path of a folder that stays, with whether it is a folder; of folders only those in which nothing stays.

    Args:
        by_git: what git ignores does not stay.
    """

    def __init__(self, root: Path, docker: Sequence[_DockerLine], *, by_git: bool, withheld: Withheld) -> None:
        self._root, self._docker, self._by_git, self._withheld = root, docker, by_git, withheld
        self._brings_back = any(line.brings_back for line in docker)
        self._named = [line for line in docker if line.brings_back and line.text.rpartition("/")[2].strip("*?.")]

    def paths(
        self, folder: Path, ignored: frozenset[str] | None = None, above: _DockerState = (False, ())
    ) -> Iterator[tuple[Path, bool]]:
        """Those in a folder.

        Args:
            ignored: by git; None: nothing above says so.
            above: what .dockerignore says of the folder.
        """
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        names = {entry.name for entry in found}
        if folder != self._root and names & _ENVIRONMENT:
            return
        if self._by_git and (
            _is_repository(folder)
            or (ignored is None and (GITIGNORE in names or (folder == self._root and _repository_of(folder))))
        ):
            ignored = _ignored_by_git(folder)
        if ignored and str(folder) in ignored:
            return
        empty = True
        for entry in found:
            path = Path(entry.path)
            if entry.name in NEVER_CODE or _REPORT.fullmatch(entry.name) or (ignored and str(path) in ignored):
                continue
            relative = path.relative_to(self._root).as_posix()
            excluded = _docker_state(self._docker, relative, above[1])
            if entry.is_dir(follow_symlinks=False):
                if not excluded[0] or self._brings_back:
                    for each in self.paths(path, ignored, excluded):
                        empty = False
                        yield each
            elif not excluded[0]:
                empty = False
                private = private_part(relative, path)
                if private is None or self._is_named(relative, private):
                    yield path, False
                else:
                    self._withheld(private)
        if empty and folder != self._root and not above[0]:
            yield folder, True

    def _is_named(self, path: str, private: str) -> bool:
        """Whether .dockerignore names a private file, or the part of its path that makes it one, or one between them:
        by more than wildcards, and not by a folder above it."""
        parts = path.split("/")
        some = ["/".join(parts[:end]) for end in range(private.count("/") + 1, len(parts) + 1)]
        return any(line.matches(each) for line in self._named for each in some)


def excluding_line(root: Path, path: str) -> str | None:
    """Which line of which file excludes a file of the project: in words; None: none does."""
    above: _DockerState = (False, ())
    parts, last = path.split("/"), None
    lines = _docker_lines(root) or ()
    for end in range(1, len(parts) + 1):
        above = _docker_state(lines, "/".join(parts[:end]), above[1])
        last = max((line.number for line, does in zip(lines, above[1], strict=True) if does), default=None)
    if above[0]:
        return next(f"line {line.number} of {DOCKERIGNORE} ({line.text})" for line in lines if line.number == last)
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


_DockerState = tuple[bool, tuple[bool, ...]]
"""Whether a path is excluded, and which lines are about it."""


def _docker_lines(root: Path) -> list[_DockerLine] | None:
    """The lines of .dockerignore, read as Docker does; None: there is none.

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
    return [*lines, own] if lines else []


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
            return _FOLDERS if found.end() < len(pattern) else _ANYTHING
        return {"*": _IN_A_NAME, "?": "[^/]"}.get(token) or (token if token[0] in "\\[" else re.escape(token))

    whole = re.compile(re.sub(r"\*\*/?|\*|\?|\\.|[.+()|{}$]", translated, pattern))
    if pattern.count("*") <= _FEW:
        return whole.fullmatch
    # Python would try all ways in which many wildcards can share a path, which may take years.
    parts = [translated(found) for found in re.finditer(r"\*\*/?|\\.|\[\^?\]?[^\]]*\]|.", pattern, re.DOTALL)]
    return lambda path: _match_at_once(parts, path)


_FOLDERS, _ANYTHING, _IN_A_NAME = r"(.*/)?", r"(?s:.*)", "[^/]*"
_FEW = 4


def _match_at_once(parts: Sequence[str], path: str) -> bool:
    """Whether a path matches a pattern's parts, by all ways at once: in the time that both have characters."""
    one = {_ANYTHING: r"(?s:.)", _IN_A_NAME: "[^/]", _FOLDERS: "."}
    takes = [re.compile(one.get(part, part)).fullmatch for part in parts]

    def with_skipped(places: set[tuple[int, bool]]) -> set[tuple[int, bool]]:
        found = set(places)
        for index, inside in places:
            while not inside and index < len(parts) and parts[index] in one:
                index += 1
                found.add((index, False))
        return found

    places = with_skipped({(0, False)})  # Of the next part, and whether it is a _FOLDERS that has begun.
    for char in path:
        following = set()
        for index, _ in places:
            if index < len(parts) and takes[index](char):
                folders = parts[index] == _FOLDERS
                if parts[index] in one:
                    following.add((index, folders))
                if parts[index] not in one or (folders and char == "/"):
                    following.add((index + 1, False))
        places = with_skipped(following)
    return (len(parts), False) in places


def _docker_state(lines: Sequence[_DockerLine], path: str, above: Sequence[bool]) -> _DockerState:
    """What .dockerignore says of a path; `above`: which lines are about the folder that it is in.

    https://github.com/moby/patternmatcher/blob/main/patternmatcher.go, MatchesUsingParentResults
    """
    excluded, about = False, []
    for index, line in enumerate(lines):
        does = bool(above and above[index]) or (line.brings_back == excluded and bool(line.matches(path)))
        about.append(does)
        if does:
            excluded = not line.brings_back
    return excluded, tuple(about)


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


def _ignored_by_git(folder: Path) -> frozenset[str]:
    """Paths that git ignores in a folder: files, and folders of which it ignores everything; the folder, if all."""
    options = ("-z", "--others", "--ignored", "--exclude-standard", "--directory")
    top, said = _ask_git(folder, "ls-files", *options)
    real = Path(os.path.realpath(folder))
    found = {top / name for name in said.split("\0")[:-1]}
    # It lists a folder too if it ignores all that is there now.
    found -= {above for path in found for above in path.parents}
    return frozenset(str(folder / path.relative_to(real)) if real in path.parents else str(folder) for path in found)


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
    # 1: `check-ignore` has found nothing.
    if done.returncode > 1:
        said = done.stderr.decode(errors="replace").strip()
        message = f"git does not say what it ignores in {folder}: {said.partition(chr(10))[0]}"
        raise UsageError(message, hint=f"git -C {folder} status, which says what to do", details=said)
    return top, os.fsdecode(done.stdout)
