"""Whether the nodes can start what `run` starts, as far as its words and the project's files tell."""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from hvdcloud.checks import Finding, failed, fine
from hvdcloud.project_files import excluding_line
from hvdcloud.training_script import with_windows_line_ends

if TYPE_CHECKING:
    from hvdcloud.node.run.sync import Entry

ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_LAUNCHERS = frozenset(
    ("horovodrun", "mpirun", "mpiexec", "orterun", "torchrun", "deepspeed", "accelerate", "srun", "hvdcloud")
)
_LAUNCHER_MODULES = frozenset(("torch.distributed.run", "torch.distributed.launch", "horovod.runner.launch"))
_BEFORE = frozenset(("env", "exec", "nohup", "time", "command"))
_INTERPRETER = re.compile(r"python[\d.]*|(ba|da|k|z)?sh")
_ENDS_COMMAND = frozenset(";&|()\n")
# A file of the project, and not something that the shell expands or that is in the image.
_SCRIPT = re.compile(r"[^-/~$`*?\s][^$`*?\s]*\.(py|sh)")


def check_command(words: Sequence[str], text: str, folder: Path, code: Callable[[], Sequence[Entry]]) -> Finding:
    """Whether a command starts a launcher, or a file of the project that is not there or not sent.

    Of a shell's line, only its first simple command is looked at.

    Args:
        words: what the user gave in place of `run.command`; empty: nothing.
        text: of `run.command`.
        code: the files that nodes get.
    """
    said = f"`{shlex.join(words)}`" if words else "run.command"

    def instead(better: str) -> str:
        return f"hvdcloud run {better}" if words else f"run.command: {better} in hvdcloud.yaml"

    line = words[0] if words else text
    command = _plain(words if len(words) > 1 else _first_command(line))
    if launcher := _launcher(command):
        message = f"{said} starts {launcher}, but hvdcloud starts the ranks itself"
        return failed(message, hint=f"name what each rank runs: {instead('python train.py')}")
    if crlf := with_windows_line_ends(words or shlex.split(text), folder):
        return failed(
            f"{crlf} has the line ends of Windows (CRLF), with which Linux cannot run it",
            hint=f"sed -i 's/\\r$//' {shlex.quote(crlf)}; a line `*.sh text eol=lf` in .gitattributes keeps it so",
        )
    script = _script(command, folder) if len(words) > 1 or not line.lstrip().startswith("#!") else None
    if script is None:
        return fine(f"run.command: {shlex.join(words) or text}")
    path = os.path.normpath(script)
    if path.startswith("..") or not (folder / path).is_file():
        return failed(
            f"{said} starts {script}, which is not in {folder}",
            hint="name a file of this folder" if words else "correct run.command in hvdcloud.yaml, or write the file",
        )
    if path not in (file.path for file in code()):
        excluding = excluding_line(folder, path)
        why = f"which {excluding} excludes" if excluding else "which is not sent: it looks private, or like no code"
        hint = "take that line out, or let one with ! in front name the file" if excluding else "give it another name"
        return failed(f"{said} starts {script}, {why}", hint=hint)
    if command[0] == script and not ("/" in script and os.access(folder / path, os.X_OK)):
        better = f"{'bash' if script.endswith('.sh') else 'python'} {shlex.join(command)}"
        return failed(f"{said} starts {script}, which is no program that nodes can start", hint=instead(better))
    return fine(f"run.command: {shlex.join(words) or text}; {script} exists")


def _first_command(line: str) -> Iterator[str]:
    """The first simple command of a shell's line."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|()\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    return itertools.takewhile(lambda word: not _ENDS_COMMAND.issuperset(word), lexer)


def _plain(words: Iterable[str]) -> list[str]:
    """A command without assignments and programs that only start another one."""
    return list(itertools.dropwhile(lambda word: ASSIGNMENT.match(word) or PurePath(word).name in _BEFORE, words))


def _launcher(command: Sequence[str]) -> str | None:
    """The launcher that a command starts."""
    program = PurePath(command[0]).name if command else ""
    module = next((after for word, after in itertools.pairwise(command) if re.fullmatch(r"-\w*m", word)), "")
    if _INTERPRETER.fullmatch(program) and module in _LAUNCHER_MODULES:
        return f"python -m {module}"
    return program if program in _LAUNCHERS else None


def _script(command: Sequence[str], folder: Path) -> str | None:
    """The project's file that a command starts; None: it starts something else, or that is not known."""
    first = command[0] if command else ""
    if _INTERPRETER.fullmatch(PurePath(first).name):
        found = next((word for word in command[1:] if _SCRIPT.fullmatch(word)), "")
    else:
        found = first if _SCRIPT.fullmatch(first) and ("/" in first or (folder / first).is_file()) else ""
    # What is above the project may be in the image.
    return found if found and (not found.startswith("..") or (folder / found).is_file()) else None
