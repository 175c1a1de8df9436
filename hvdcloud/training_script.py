"""What a training script says of itself without being run: its framework, its launcher, and what it needs besides."""

from __future__ import annotations

import ast
import os
import re
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hvdcloud.errors import UsageError

FRAMEWORKS = {"torch": "torch", "tensorflow": "tensorflow", "keras": "tensorflow", "tf_keras": "tensorflow"}
"""What a script imports → `image.framework`."""
# Every image has them: the framework, Horovod, and what these two cannot do without.
_IN_THE_IMAGE = frozenset({*FRAMEWORKS, "horovod", "numpy", "cloudpickle", "packaging", "psutil", "yaml"})
_WRITTEN_FOR = {
    "horovod": re.compile(r"horovod\b"),
    "torchrun": re.compile(
        r"(torch\.distributed|torch\.nn\.parallel\.(distributed|DistributedDataParallel)|accelerate|deepspeed"
        r"|(pytorch_)?lightning(_fabric)?|transformers\.\w*Trainer)\b"
    ),
    "each": re.compile(r"jax\b"),
}
"""`run.launcher` → the names in a script that show that it is written for it; what comes first counts."""
# Of a script that also runs under Horovod, or Open MPI, without an import of Horovod: Lightning takes it by its name.
_NAMES_HOROVOD = re.compile(r"horovod(\.\w+)*|(HOROVOD|OMPI_COMM_WORLD)_\w+")
_SPAWNS = re.compile(r"torch\.multiprocessing\.(spawn|start_processes)")
_STARTS = re.compile(r"(torch\.)?multiprocessing\.Process")
_JOINS = "torch.distributed.init_process_group"
_OWN_ADDRESS = re.compile(r"tcp://(localhost|127\.)")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingScript:
    """What a script imports and calls, directly and by the files beside it.

    Attributes:
        framework: `image.framework`; None: it imports none.
        because: the import that decided that: `train.py:4 imports horovod.torch`.
        other_framework: one that it imports as well; None: no other.
        launchers: each `run.launcher` that it is written for, and what shows that: `train.py:4 imports horovod.torch`;
            the first is what `init` takes.
        needs_horovod: it cannot begin without it: a file that it always imports does so at its top.
        spawns: what shows that it starts its ranks itself: `train.py:9 calls torch.multiprocessing.spawn`; else empty.
        relative: it imports what is beside it as a part of its own package: `from .net import x`.
        packages: names of modules that neither Python, the project nor the image has, as far as that is known.
    """

    framework: str | None
    because: str
    other_framework: str | None
    launchers: Mapping[str, str]
    needs_horovod: bool
    spawns: str
    relative: bool
    packages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Import:
    name: str  # With dots: `horovod.torch`; of `from a import b` both `a` and `a.b`.
    level: int  # Dots in front of it: of a relative import.
    line: int
    at_top: bool  # In no `try`, `if` or function: it is always imported.


class _Launchers:
    """Collects what the files of a script show of how it is started."""

    def __init__(self) -> None:
        self._found: dict[str, str] = {}
        self._names_horovod = self._spawns = self._starts = ""
        self._reads_rank = self._joins = self._joins_itself = False

    def take(self, name: str, shows: str) -> None:
        """Take a module that is imported, or what is used of one."""
        for launcher, pattern in _WRITTEN_FOR.items():
            if pattern.match(name):
                self._found.setdefault(launcher, shows)

    def read(self, tree: ast.Module, file: str, *, packages: Collection[str]) -> None:
        """Take what a file uses of packages, and calls."""
        bound = dict(_bound(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                if (name := _dotted(node, bound)).partition(".")[0] in packages:
                    self.take(name, f"{file}:{node.lineno} uses {name}")
            elif isinstance(node, ast.Call):
                self._called(node, _dotted(node.func, bound), f"{file}:{node.lineno}")
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                self._reads_rank |= node.value in ("RANK", "LOCAL_RANK")
                if _NAMES_HOROVOD.fullmatch(node.value):
                    self._names_horovod = self._names_horovod or f"{file}:{node.lineno} names {node.value}"

    def _called(self, call: ast.Call, name: str, where: str) -> None:
        said = f"{where} calls {name}"
        if _SPAWNS.match(name):
            self._spawns = self._spawns or said
        elif _STARTS.match(name):
            self._starts = self._starts or said
        elif name == _JOINS:
            self._joins = True
            for given in call.keywords:
                address = str(given.value.value) if isinstance(given.value, ast.Constant) else ""
                if given.arg == "init_method" and _OWN_ADDRESS.match(address):
                    self._spawns = self._spawns or f"{where} joins its ranks at {address}"
                self._joins_itself |= given.arg == "rank"

    @property
    def found(self) -> Mapping[str, str]:
        """See `TrainingScript.launchers`."""
        found = {each: self._found[each] for each in _WRITTEN_FOR if each in self._found}
        return found | ({"horovod": self._names_horovod} if self._names_horovod and "horovod" not in found else {})

    @property
    def spawns(self) -> str:
        """See `TrainingScript.spawns`. One that reads the rank that torchrun gives it may do both."""
        started = self._spawns or (self._starts if self._joins_itself else "")
        return started if self._joins and not self._reads_rank else ""


def read_script(script: Path, *, project: Path | None = None) -> TrainingScript:
    """Parse a script and the project's own files that it imports; nothing is executed.

    Args:
        project: the folder that the script belongs to; None: its own.

    Raises UsageError: one of them cannot be read, or is not Python.
    """
    decided: dict[str, str] = {}  # Framework → the import that says so; what Horovod is imported for comes first.
    horovod: dict[str, str] = {}
    packages: set[str] = set()
    launchers = _Launchers()
    relative = needs_horovod = False
    folders = [script.parent, *([project, project / "src"] if project is not None else [])]
    if script.suffix == ".ipynb":
        hint = f"jupyter nbconvert --to script {script}, then the same command with the file that it writes"
        raise UsageError(f"{script} is a notebook, not a Python file", hint=hint)
    waiting, seen = [(script, True)], {script}
    while waiting:
        file, always = waiting.pop(0)
        name, tree = os.path.relpath(file, script.parent), _parse(file)
        for each in _imports(tree):
            relative |= each.level > 0 and file == script
            own = [path for root in folders for path in _own_files(each, file, root=root) if path.is_file()]
            waiting += [(path, always and each.at_top) for path in own if path not in seen]
            seen.update(own)
            first, *rest = each.name.split(".")
            ours = any((root / first).is_dir() or (root / f"{first}.py").is_file() for root in folders)
            if each.level or ours or first in sys.stdlib_module_names:
                continue
            because = f"{name}:{each.line} imports {each.name}"
            launchers.take(each.name, because)
            if first == "horovod":
                needs_horovod |= always and each.at_top
                horovod.setdefault(FRAMEWORKS.get(rest[0], "") if rest else "", because)
            elif first in FRAMEWORKS:
                decided.setdefault(FRAMEWORKS[first], because)
            packages.add(first)
        launchers.read(tree, name, packages=packages)
    decided = {framework: because for framework, because in horovod.items() if framework} or decided
    launcher, because = next(iter(launchers.found.items()), ("", ""))
    if launcher == "torchrun":
        decided = {"torch": decided.get("torch", because), **decided}
    framework, other, *_ = [*decided, None, None]
    return TrainingScript(
        framework=framework,
        because=decided[framework] if framework else "",
        other_framework=other,
        launchers=launchers.found,
        needs_horovod=needs_horovod,
        spawns=launchers.spawns,
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


def _parse(file: Path) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's own, about what it would not do itself.
            return ast.parse(file.read_bytes())  # Bytes: its encoding is what Python would take.
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}", hint="hvdcloud init --script FILE") from error
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        why = error.msg if isinstance(error, SyntaxError) else error
        raise UsageError(f"{file}{line} is not Python: {why}", hint=f"python -m py_compile {file}") from error


def _imports(tree: ast.Module) -> Iterator[_Import]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (_Import(alias.name, 0, node.lineno, node in tree.body) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = [node.module] if node.module else []
            names = [".".join([*module, alias.name]) for alias in node.names]
            yield from (_Import(name, node.level, node.lineno, node in tree.body) for name in [*module, *names])


def _bound(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The names that imports give a file, and what each stands for, with dots."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                yield alias.asname or first, alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def _dotted(node: ast.expr, bound: Mapping[str, str]) -> str:
    """What an expression names: `dist.barrier` is `torch.distributed.barrier`; empty: nothing that is imported."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    first = bound.get(node.id) if isinstance(node, ast.Name) else None
    return ".".join([first, *reversed(parts)]) if first else ""


def _own_files(what: _Import, file: Path, *, root: Path) -> Iterator[Path]:
    """Where an import would be among the project's files."""
    base = file.parents[what.level - 1] if 0 < what.level <= len(file.parents) else root
    path = base.joinpath(*what.name.split("."))
    yield path.with_suffix(".py")
    yield path / "__init__.py"
