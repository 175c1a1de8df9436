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
from hvdcloud.errors import UsageError
from hvdcloud.project_files import excluding_line
from hvdcloud.training_script import read_script, with_windows_line_ends

if TYPE_CHECKING:
    from hvdcloud.config.model import Launcher
    from hvdcloud.node.run.sync import Entry

ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
# What starts ranks, as a program or a module → the run.launcher that does it instead; "": that is not known.
_LAUNCHERS = {
    **dict.fromkeys(("horovodrun", "horovod.runner.launch"), "horovod"),
    **dict.fromkeys(("torchrun", "torch.distributed.run", "torch.distributed.launch"), "torchrun"),
    **dict.fromkeys(("accelerate", "accelerate.commands.launch", "deepspeed"), "each"),
    **dict.fromkeys(("mpirun", "mpiexec", "orterun", "srun", "hvdcloud"), ""),
}
_BEFORE = frozenset(("env", "exec", "nohup", "time", "command"))
_INTERPRETER = re.compile(r"python[\d.]*|(ba|da|k|z)?sh")
_ENDS_COMMAND = frozenset(";&|()\n")
# A file of the project, and not something that the shell expands or that is in the image.
_SCRIPT = re.compile(r"[^-/~$`*?\s][^$`*?\s]*\.(py|sh)")


def check_command(
    words: Sequence[str], text: str, folder: Path, code: Callable[[], Sequence[Entry]], *, launcher: Launcher
) -> Finding:
    """Whether a command starts a launcher, a file of the project that is not there or not sent, or a script that is
    written for another launcher.

    Of a shell's line, only its first simple command is looked at.

    Args:
        words: what the user gave in place of `run.command`; empty: nothing.
        text: of `run.command`.
        code: the files that nodes get.
        launcher: `run.launcher`.
    """
    said = f"`{shlex.join(words)}`" if words else "run.command"

    def instead(better: str) -> str:
        return f"hvdcloud run {better}" if words else f"run.command: {better} in hvdcloud.yaml"

    line = words[0] if words else text
    command = _plain(words if len(words) > 1 else _first_command(line))
    program, same = _starter(command)
    if program and (launcher != "each" or same == "horovod" or program == "hvdcloud"):
        message = f"{said} starts {program}, but hvdcloud starts the ranks itself"
        hint = f"name what each rank runs: {instead('python train.py')}"
        if same == "each":
            hint = f"{_set(same)}, which starts this command once on every node; or {hint}"
        elif same not in ("", launcher):
            hint = f"{hint}, and {_set(same)}"
        return failed(message, hint=hint)
    if crlf := with_windows_line_ends(words or shlex.split(text), folder):
        return failed(
            f"{crlf} has the line ends of Windows (CRLF), with which Linux cannot run it",
            hint=f"sed -i 's/\\r$//' {shlex.quote(crlf)}; a line `*.sh text eol=lf` in .gitattributes keeps it so",
        )
    script = _script(command, folder) if len(words) > 1 or not line.lstrip().startswith("#!") else None
    if script is None:
        module = folder / f"{_module(command).replace('.', '/')}.py"
        return _misfit(module, folder, launcher=launcher) or fine(f"run.command: {shlex.join(words) or text}")
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
    misfit = _misfit(folder / path, folder, launcher=launcher)
    return misfit or fine(f"run.command: {shlex.join(words) or text}; {script} exists")


def _first_command(line: str) -> Iterator[str]:
    """The first simple command of a shell's line."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|()\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    return itertools.takewhile(lambda word: not _ENDS_COMMAND.issuperset(word), lexer)


def _plain(words: Iterable[str]) -> list[str]:
    """A command without assignments and programs that only start another one."""
    return list(itertools.dropwhile(lambda word: ASSIGNMENT.match(word) or PurePath(word).name in _BEFORE, words))


def _starter(command: Sequence[str]) -> tuple[str, str]:
    """What a command starts ranks with, as a message names it, and which `run.launcher` does the same."""
    program, module = PurePath(command[0]).name if command else "", _module(command)
    if module in _LAUNCHERS:
        return f"python -m {module}", _LAUNCHERS[module]
    return (program, _LAUNCHERS[program]) if program in _LAUNCHERS else ("", "")


def _module(command: Sequence[str]) -> str:
    """The module that a command has Python run; empty: none."""
    if not command or not _INTERPRETER.fullmatch(PurePath(command[0]).name):
        return ""
    return next((after for word, after in itertools.pairwise(command) if re.fullmatch(r"-\w*m", word)), "")


def _set(launcher: str) -> str:
    return f"set run.launcher: {launcher} in hvdcloud.yaml"


def _misfit(script: Path, folder: Path, *, launcher: Launcher) -> Finding | None:
    """What in a script is for another launcher; None: nothing, or nobody can tell."""
    if launcher == "each" or script.suffix != ".py":
        return None
    try:
        found = read_script(script, project=folder)
    except (UsageError, RecursionError):
        return None
    as_ddp = "as `hvdcloud init --template ddp` shows"
    if launcher == "horovod" and "torchrun" in found.launchers and "horovod" not in found.launchers:
        message = f"{found.launchers['torchrun']}, and run.launcher is horovod: each rank would train alone"
        return failed(message, hint=_set("torchrun"))
    if launcher == "torchrun" and found.needs_horovod and "torchrun" not in found.launchers:
        message = f"{found.launchers['horovod']}, and run.launcher is torchrun, which starts no Horovod"
        return failed(message, hint=f"{_set('horovod')}; or let it use torch.distributed, {as_ddp}")
    if launcher == "torchrun" and found.spawns:
        message = f"{found.spawns}, and run.launcher is torchrun, which starts all ranks itself"
        return failed(message, hint=f"take that out and read LOCAL_RANK, {as_ddp}; or {_set('each')}")
    return None


def _script(command: Sequence[str], folder: Path) -> str | None:
    """The project's file that a command starts; None: it starts something else, or that is not known."""
    first = command[0] if command else ""
    if _INTERPRETER.fullmatch(PurePath(first).name):
        found = next((word for word in command[1:] if _SCRIPT.fullmatch(word)), "")
    else:
        found = first if _SCRIPT.fullmatch(first) and ("/" in first or (folder / first).is_file()) else ""
    # What is above the project may be in the image.
    return found if found and (not found.startswith("..") or (folder / found).is_file()) else None
