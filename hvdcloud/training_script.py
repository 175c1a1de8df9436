"""What a training script says of itself without being run: its framework, and what it needs besides."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hvdcloud.errors import UsageError

FRAMEWORKS = {"torch": "torch", "tensorflow": "tensorflow", "keras": "tensorflow", "tf_keras": "tensorflow"}
"""What a script imports → `image.framework`."""
# Every image has them: the framework, Horovod, and what these two cannot do without.
_IN_THE_IMAGE = frozenset({*FRAMEWORKS, "horovod", "numpy", "cloudpickle", "packaging", "psutil", "yaml"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingScript:
    """What a script imports, directly and by the files beside it.

    Attributes:
        framework: `image.framework`; None: it imports none.
        because: the import that decided that: `train.py:4 imports horovod.torch`.
        other_framework: one that it imports as well; None: no other.
        uses_horovod: it imports Horovod.
        relative: it imports what is beside it as a part of its own package: `from .net import x`.
        packages: names of modules that neither Python, the project nor the image has, as far as that is known.
    """

    framework: str | None
    because: str
    other_framework: str | None
    uses_horovod: bool
    relative: bool
    packages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Import:
    name: str  # With dots: `horovod.torch`; of `from a import b` both `a` and `a.b`.
    level: int  # Dots in front of it: of a relative import.
    line: int


def read_script(script: Path, *, project: Path | None = None) -> TrainingScript:
    """Parse a script and the project's own files that it imports; nothing is executed.

    Args:
        project: the folder that the script belongs to; None: its own.

    Raises UsageError: one of them cannot be read, or is not Python.
    """
    decided: dict[str, str] = {}  # Framework → the import that says so; what Horovod is imported for comes first.
    horovod: dict[str, str] = {}
    packages: set[str] = set()
    relative = False
    folders = [script.parent, *([project, project / "src"] if project is not None else [])]
    if script.suffix == ".ipynb":
        hint = f"jupyter nbconvert --to script {script}, then the same command with the file that it writes"
        raise UsageError(f"{script} is a notebook, not a Python file", hint=hint)
    waiting, seen = [script], {script}
    while waiting:
        file = waiting.pop(0)
        source = _read(file)
        for each in _imports(source, file):
            relative |= each.level > 0 and file == script
            own = [path for root in folders for path in _own_files(each, file, root=root) if path.is_file()]
            waiting += [path for path in own if path not in seen]
            seen.update(own)
            first, *rest = each.name.split(".")
            ours = any((root / first).is_dir() or (root / f"{first}.py").is_file() for root in folders)
            if each.level or ours or first in sys.stdlib_module_names:
                continue
            because = f"{os.path.relpath(file, script.parent)}:{each.line} imports {each.name}"
            if first == "horovod":
                horovod.setdefault(FRAMEWORKS.get(rest[0], "") if rest else "", because)
            elif first in FRAMEWORKS:
                decided.setdefault(FRAMEWORKS[first], because)
            packages.add(first)
    decided = {framework: because for framework, because in horovod.items() if framework} or decided
    framework, other, *_ = [*decided, None, None]
    return TrainingScript(
        framework=framework,
        because=decided[framework] if framework else "",
        other_framework=other,
        uses_horovod=bool(horovod),
        relative=relative,
        packages=tuple(sorted(packages - _IN_THE_IMAGE)),
    )


def training_scripts(folder: Path) -> list[Path]:
    """Python files of a folder that import a framework; what is called after training comes first."""
    found = []
    for file in sorted(folder.glob("*.py")):
        try:
            if read_script(file).framework:
                found.append(file)
        except UsageError:
            continue  # What is not Python is no training script.
    return sorted(found, key=lambda file: "train" not in file.name)


def with_windows_line_ends(words: Sequence[str], folder: Path) -> str | None:
    """The script of a project that a command starts and that Linux cannot run, because its lines end as on Windows
    (CRLF): its first line names a program with a carriage return. Python itself reads such files."""
    for index, word in enumerate(words):
        if Path(word).name.startswith("python"):
            return None
        try:
            with (folder / word).open("rb") as file:
                first = file.readline(1000)
        except (OSError, ValueError):
            continue
        shell = word.endswith(".sh") or (first.startswith(b"#!") and b"sh" in first)
        if first.endswith(b"\r\n") and (shell or (first.startswith(b"#!") and not index)):
            return word
    return None


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}", hint="hvdcloud init --script FILE") from error


def _imports(source: bytes, file: Path) -> Iterator[_Import]:
    try:
        tree = ast.parse(source)  # Bytes: its encoding is what Python would take.
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        why = error.msg if isinstance(error, SyntaxError) else error
        raise UsageError(f"{file}{line} is not Python: {why}", hint=f"python -m py_compile {file}") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (_Import(alias.name, 0, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = [node.module] if node.module else []
            names = [".".join([*module, alias.name]) for alias in node.names]
            yield from (_Import(name, node.level, node.lineno) for name in [*module, *names])


def _own_files(what: _Import, file: Path, *, root: Path) -> Iterator[Path]:
    """Where an import would be among the project's files."""
    base = file.parents[what.level - 1] if 0 < what.level <= len(file.parents) else root
    path = base.joinpath(*what.name.split("."))
    yield path.with_suffix(".py")
    yield path / "__init__.py"
