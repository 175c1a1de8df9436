"""Whether the nodes can start what `run` starts, as far as its words and the project's files tell."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePath

from hvdcloud.checks import Finding, failed, fine
from hvdcloud.errors import UsageError
from hvdcloud.project_files import excluding_line
from hvdcloud.training_script import with_windows_line_ends

ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_LAUNCHERS = frozenset(
    ("horovodrun", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "torchrun", "deepspeed", "srun", "hvdcloud")
)
_LAUNCHER_MODULES = frozenset(
    ("torch.distributed.run", "torch.distributed.launch", "horovod.runner.launch", "accelerate.commands.launch")
)
_BEFORE = frozenset(("env", "exec", "nohup", "time", "command"))
_PYTHON, _SHELL = re.compile(r"python[\d.]*"), re.compile(r"(ba|da|k|z)?sh")
_SCRIPT = re.compile(r".*\.(py|sh)")
_SHELL_SYNTAX = re.compile(r"[|&;<>()$`*?\[\]~{}\n]")


def check_command(words: Sequence[str], text: str, folder: Path, sent: Callable[[], frozenset[str]]) -> Finding:
    """Whether a command starts a launcher, or a file of the project that is not there or not sent.

    Args:
        words: what the user gave in place of `run.command`; empty: nothing.
        text: of `run.command`.
        sent: the names of the files that nodes get.
    """
    said = f"`{shlex.join(words)}`" if words else "run.command"

    def refused(problem: str, better: str) -> Finding:
        hint = f"hvdcloud run {better}" if words else f"run.command: {better} in hvdcloud.yaml"
        return failed(f"{said} starts {problem}", hint=hint, error=UsageError)

    commands = [list(words)] if len(words) > 1 else list(_commands(words[0] if words else text))
    for each in commands:
        if found := _launcher(each):
            launcher, rest = found
            return refused(f"{launcher}, but hvdcloud starts the ranks itself", rest or "python train.py")
    if crlf := with_windows_line_ends(words or shlex.split(text), folder):
        return failed(
            f"{crlf} has the line ends of Windows (CRLF), with which Linux cannot run it",
            hint=f"sed -i 's/\\r$//' {shlex.quote(crlf)}; a line `*.sh text eol=lf` in .gitattributes keeps it so",
            error=UsageError,
        )
    own_interpreter = len(words) < 2 and (words[0] if words else text).lstrip().startswith("#!")
    plain = _plain(commands[0]) if commands and not own_interpreter else []
    first = plain[0] if plain else ""
    program = f"{'bash' if first.endswith('.sh') else 'python'} {shlex.join(plain)}"
    script = _script(plain, folder)
    if script is None:
        return fine(f"run.command: {shlex.join(words) or text}")
    path = os.path.normpath(script)
    if not (folder / path).is_file():
        return failed(
            f"{said} starts {script}, which is not in {folder}",
            hint="name a file of this folder" if words else "correct run.command in hvdcloud.yaml, or write the file",
            error=UsageError,
        )
    if path.startswith(".."):
        return failed(f"{said} starts {script}, which is outside of {folder}", hint="copy it there", error=UsageError)
    if path not in sent():
        line = excluding_line(folder, path)
        why = f"which {line} excludes" if line else "which is not sent to nodes: it looks private, or like no code"
        hint = "take that line out, or let one with ! in front name the file" if line else "give it another name"
        return failed(f"{said} starts {script}, {why}", hint=hint, error=UsageError)
    if first == script and not ("/" in first and os.access(folder / path, os.X_OK) and _begins(folder / path)):
        return refused(f"{script}, which is no program that nodes can start", program)
    return fine(f"run.command: {shlex.join(words) or text}; {script} exists")


def _commands(text: str) -> Iterator[list[str]]:
    """The simple commands of a shell's line."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|()\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    command: list[str] = []
    for word in lexer:
        if set(word) <= set(";&|()\n"):
            yield command
            command = []
        else:
            command.append(word)
    yield command


def _plain(words: Sequence[str]) -> list[str]:
    """A command without assignments and programs that only start another one."""
    rest = list(words)
    while rest and (ASSIGNMENT.match(rest[0]) or PurePath(rest[0]).name in _BEFORE):
        rest.pop(0)
    return rest


def _launcher(words: Sequence[str]) -> tuple[str, str] | None:
    """The launcher that a command starts, and the command without it; empty: it is not clear."""
    rest = _plain(words)
    program = PurePath(rest[0]).name if rest else ""
    kind, script = _started(rest)
    if kind == "shell":
        return next(filter(None, map(_launcher, _commands(script))), None)
    if program == "accelerate" and "launch" in rest[1:2]:
        rest = rest[1:]
    elif program not in _LAUNCHERS and not (kind == "module" and script in _LAUNCHER_MODULES):
        return None
    if kind == "module":
        program, rest = f"python -m {script}", rest[rest.index(script) :] if script in rest else []
    after = rest[1:]
    for index, word in enumerate(after):
        if _PYTHON.fullmatch(PurePath(word).name) or _SHELL.fullmatch(PurePath(word).name):
            return program, shlex.join(after[index:])
        if word == "-m" or word.endswith(".py"):
            return program, shlex.join(["python", *after[index:]])
    return program, ""


def _started(words: Sequence[str]) -> tuple[str, str]:
    """What an interpreter is given: a `file`, a `module` or a line for a `shell`, and its name or text."""
    name = PurePath(words[0]).name if words else ""
    python = _PYTHON.fullmatch(name) is not None
    if not python and not _SHELL.fullmatch(name):
        return "", ""
    rest = iter(words[1:])
    for word in rest:
        if not word.startswith(("-", "+")):
            return ("", "") if word.startswith("<") else ("file", word)
        if word == "-":
            return "", ""
        if re.fullmatch(r"-[A-Za-z]*c", word):
            return ("", "") if python else ("shell", next(rest, ""))
        if python and (module := re.fullmatch(r"-[bBdEhiIOPqsSuvx]*m(.*)", word)):
            return "module", module[1] or next(rest, "")
        if word in (("-W", "-X", "--check-hash-based-pycs") if python else ("-o", "+o", "-O", "+O", "--rcfile")):
            next(rest, "")
    return "", ""


def _script(words: Sequence[str], folder: Path) -> str | None:
    """The project's file that a command starts; None: it starts something else, or that is not known."""
    kind, name = _started(words)
    if kind == "module":
        package, path = name.partition(".")[0], name.replace(".", "/")
        found = [each for each in (f"{path}.py", f"{path}/__main__.py") if (folder / each).is_file()]
        # A regular package of the project comes before all that is installed; the image may have another one.
        return found[0] if found else f"{path}.py" if (folder / package / "__init__.py").is_file() else None
    first = words[0] if words else ""
    if not kind and ("/" in first or (_SCRIPT.fullmatch(first) and (folder / first).is_file())):
        name = first
    # What only begins like a path above may be in the image.
    unknown = not name or kind == "shell" or name.startswith("/") or _SHELL_SYNTAX.search(name)
    if unknown or (os.path.normpath(name).startswith("..") and not (folder / name).is_file()):
        return None
    return name


def _begins(file: Path) -> bool:
    """Whether a program's file says what starts it; Python's has to."""
    with file.open("rb") as content:
        return content.read(2) == b"#!" or file.suffix != ".py"
