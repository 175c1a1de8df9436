"""How horovodrun is started."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

PROGRAM = "horovodrun"


def launcher_argv(command: Sequence[str], *, path: str) -> list[str]:
    """The same command with our `horovodrun.py` in horovodrun's place, under the Python that horovodrun names.

    Args:
        command: horovodrun's command line.
        path: where to look for it, as in `$PATH`.

    Returns:
        the command as it is, if it is not horovodrun or that is not a Python program.
    """
    if not command or command[0] != PROGRAM:
        return list(command)
    script = shutil.which(PROGRAM, path=path)
    if script is None:
        return list(command)
    with Path(script).open("rb") as file:
        first = file.readline(4096).decode(errors="replace").strip()
    interpreter = first.removeprefix("#!").strip()
    if not first.startswith("#!") or "python" not in Path(interpreter).name or not Path(interpreter).is_file():
        return list(command)
    return [interpreter, str(Path(__file__).with_name("horovodrun.py")), *command[1:]]
