"""`image.dockerfile`: the user's own Dockerfile, on top of our image; what can be said of it before it is built.

What it needs of the project's folder is sent, and no more: a file that no COPY names does not change the image's name.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from hvdcloud.errors import UsageError
from hvdcloud.image.plan import context

BASE_ARGUMENT = "BASE"
CHECKED_DOCKERFILE = "checked.Dockerfile"
IGNORE_FILE = ".dockerignore"
_FIRST_LINES = f"ARG {BASE_ARGUMENT}, then FROM ${{{BASE_ARGUMENT}}}"
# https://docs.docker.com/reference/dockerfile/#escape
_ESCAPE = re.compile(r"^#\s*escape\s*=\s*(\S)\s*$", re.IGNORECASE | re.MULTILINE)
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_FLAGS = re.compile(r"^(?:--\S+\s+)+")
_FROM = re.compile(r"^(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?$", re.IGNORECASE)
_REMOTE = re.compile(r"^(?:https?|ftp|ssh)://|^git@")
_WILDCARD = re.compile(r"[*?\[\\$]")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of a Dockerfile: the line it begins in, its name in capitals, the rest of it in one line."""

    line: int
    name: str
    rest: str


@dataclass(frozen=True, slots=True)
class Stage:
    """One FROM and what follows it.

    Attributes:
        base: what it begins with, as written.
        name: "" without.
    """

    base: str
    name: str
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserDockerfile:
    """A Dockerfile that begins with our image.

    Attributes:
        path: of it, relative to the project's folder.
        stages: the last one is the image.
    """

    path: str
    stages: tuple[Stage, ...]

    @property
    def last_thrown_away(self) -> str:
        """The name of the stage before the last, which the classic builder leaves behind as an image without a name."""
        return self.stages[-2].name if len(self.stages) > 1 else ""

    def sources(self) -> set[str]:
        """Paths of the project that it copies; "." is all of it."""
        return {source for stage in self.stages for each in stage.instructions for source in _sources(each)}


def read(project_dir: Path, path: str) -> UserDockerfile:
    """Reads `image.dockerfile`.

    Raises:
        UsageError: it is missing or not below the project's folder, does not begin with our image, or replaces what
            nodes start.
    """
    file = project_dir / path
    if not file.is_file():
        message = f"{file} does not exist, but image.dockerfile names it"
        raise UsageError(message, hint=f"create it ({_FIRST_LINES}), or take image.dockerfile out of hvdcloud.yaml")
    if project_dir.resolve() not in file.resolve().parents:
        message = f"{file} is not below the project's folder {project_dir.resolve()}, which is all that can be sent"
        raise UsageError(message, hint="move it into the project and correct image.dockerfile")
    name = file.resolve().relative_to(project_dir.resolve()).as_posix()
    instructions = list(_instructions(file.read_text(encoding="utf-8", errors="replace")))
    stages = tuple(_stages(instructions))
    _check_base(file, instructions, stages)
    _check_start(file, stages)
    return UserDockerfile(path=name, stages=stages)


def user_context(user: UserDockerfile, *, project_dir: Path, base: str) -> context.Context:
    """What is sent for the user's Dockerfile: itself and the files that it copies, less those in .dockerignore.

    Raises:
        UsageError: a file can't be read.
    """
    root = project_dir.resolve()
    paths = {user.path, *_sent(root, user.sources())}
    entries = [entry for path in sorted(paths) if (entry := _entry(root / path, path)) is not None]
    return context.Context(hashed=tuple(entries), salt=(base, user.path))


def checked_context(image: str, *, controllers: tuple[str, ...]) -> context.Context:
    """For the proof that the user's image is still a node, where Horovod works with these controllers."""
    files = context.dockerfile_entries(CHECKED_DOCKERFILE, "files/check_horovod.py", "own/check_node.py")
    return context.Context(hashed=files, salt=(image, *controllers))


def _instructions(text: str) -> Iterator[Instruction]:
    """The instructions, each as one line: without comments and line ends, and without the text of here-documents."""
    escape = _ESCAPE.match(text)
    continued = escape[1] if escape else "\\"
    parts: list[str] = []
    first = 0
    ends: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if ends:
            if line.strip() == ends[0]:
                ends.pop(0)
            continue
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        if not parts:
            first = number
        if stripped.endswith(continued):
            parts.append(stripped[: -len(continued)].rstrip())
            continue
        parts.append(stripped)
        name, _, rest = " ".join(parts).partition(" ")
        parts = []
        if name.upper() in ("RUN", "COPY", "ADD"):
            ends = [match[2] for match in _HEREDOC.finditer(rest)]
        yield Instruction(first, name.upper(), rest.strip())


def _stages(instructions: list[Instruction]) -> Iterator[Stage]:
    starts = [index for index, each in enumerate(instructions) if each.name == "FROM"]
    for start, end in itertools.pairwise([*starts, len(instructions)]):
        found = _FROM.match(instructions[start].rest)
        base, name = (found[1], found[2] or "") if found else (instructions[start].rest, "")
        yield Stage(base, name, tuple(instructions[start + 1 : end]))


def _line_of_descent(stages: tuple[Stage, ...]) -> Iterator[Stage]:
    """The last stage, the one that it begins with, and so on."""
    stage = stages[-1]
    earlier = stages[:-1]
    while True:
        yield stage
        names = [other.name.lower() for other in earlier]
        if not stage.base or stage.base.lower() not in names:
            return
        index = names.index(stage.base.lower())
        stage, earlier = earlier[index], earlier[:index]


def _check_base(file: Path, instructions: list[Instruction], stages: tuple[Stage, ...]) -> None:
    if not stages:
        raise UsageError(f"{file} has no FROM", hint=f"begin it with {_FIRST_LINES}")
    before = itertools.takewhile(lambda each: each.name != "FROM", instructions)
    declared = any(each.name == "ARG" and re.match(rf"{BASE_ARGUMENT}(=|\s|$)", each.rest) for each in before)
    *_, oldest = _line_of_descent(stages)
    used = re.fullmatch(rf"\$(?:{BASE_ARGUMENT}|\{{{BASE_ARGUMENT}(?::?[-+][^}}]*)?\}})", oldest.base.strip("\"'"))
    if not used:
        line = [each.line for each in instructions if each.name == "FROM"][stages.index(oldest)]
        raise UsageError(
            f"{file}:{line}: its image begins with {oldest.base}, which has neither sshd nor the node program",
            hint=f"begin it with {_FIRST_LINES}; another image than hvdcloud's is image.base in hvdcloud.yaml",
        )
    if not declared:
        message = f"{file} uses {oldest.base} without ARG {BASE_ARGUMENT} before its first FROM"
        raise UsageError(message, hint=f"begin it with {_FIRST_LINES}")


def _check_start(file: Path, stages: tuple[Stage, ...]) -> None:
    for stage in _line_of_descent(stages):
        for each in stage.instructions:
            if each.name in ("ENTRYPOINT", "CMD"):
                message = f"{file}:{each.line}: {each.name} would replace what a node starts: sshd and the node program"
                raise UsageError(message, hint=f"take {each.name} out; what ranks run is run.command in hvdcloud.yaml")


def _sources(instruction: Instruction) -> Iterator[str]:
    """Paths of the context that an instruction reads."""
    rest = instruction.rest
    if instruction.name == "ONBUILD":
        name, _, rest = rest.partition(" ")
        yield from _sources(Instruction(instruction.line, name.upper(), rest.strip()))
    if instruction.name == "RUN" and re.search(r"--mount=(?!\S*(from=|type=(cache|tmpfs|secret|ssh)))", rest):
        yield "."
    if instruction.name not in ("COPY", "ADD"):
        return
    flags = _FLAGS.match(rest)
    if flags and "--from=" in flags[0]:
        return
    for word in _words(rest[flags.end() :] if flags else rest)[:-1]:
        if not _REMOTE.match(word) and not _HEREDOC.match(word):
            yield _fixed_part(word)


def _words(rest: str) -> list[str]:
    if rest.startswith("["):
        try:
            return [str(word) for word in json.loads(rest)]
        except ValueError:
            return rest.split()
    return [word.strip("\"'") for word in rest.split()]


def _fixed_part(source: str) -> str:
    """The folder below which everything is that a source with wildcards or variables may mean."""
    parts: list[str] = []
    for part in PurePosixPath(source.lstrip("/") or ".").parts:
        if _WILDCARD.search(part):
            break
        if part == "..":
            # Docker takes what would be outside of the context for its root.
            parts = parts[:-1]
        else:
            parts.append(part)
    return "/".join(parts) or "."


def _sent(root: Path, sources: set[str]) -> Iterator[str]:
    """Files, links and empty folders below the sources, relative to `root`, that .dockerignore leaves."""
    from docker.utils.build import PatternMatcher

    ignore = root / IGNORE_FILE
    lines = ignore.read_text(encoding="utf-8", errors="replace").splitlines() if ignore.is_file() else []
    patterns = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    matcher = PatternMatcher(patterns)
    # Whatever is in an ignored folder is ignored too, unless a line brings some of it back.
    prune = not any(pattern.startswith("!") for pattern in patterns)

    def walk(path: str) -> Iterator[str]:
        full = root / path
        ignored = path != "." and matcher.matches(path)  # type: ignore[arg-type] # its stub's mistake
        if full.is_symlink() or not full.is_dir():
            if not ignored and (full.is_symlink() or full.exists()):
                yield path
            return
        if ignored and prune:
            return
        names = sorted(child.name for child in full.iterdir())
        if not names and not ignored:
            yield path
        for name in names:
            yield from walk(name if path == "." else f"{path}/{name}")

    for source in sources:
        yield from walk(source)


def _entry(full: Path, path: str) -> context.Entry | None:
    """None for sockets and the like, which Docker leaves out too. Raises UsageError: it can't be read."""
    try:
        if full.is_symlink():
            return context.Entry(path=path, link=os.readlink(full))
        mode = full.stat().st_mode
        if stat.S_ISDIR(mode):
            return context.Entry(path=path)
        if not stat.S_ISREG(mode):
            return None
        with full.open("rb"):
            return context.Entry(path=path, source=full, executable=bool(mode & stat.S_IXUSR))
    except OSError as error:
        message = f"{full} can't be read for image.dockerfile: {error.strerror}"
        raise UsageError(message, hint=f"correct its permissions, or add it to {IGNORE_FILE}") from error
