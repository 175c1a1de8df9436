#!/usr/bin/python3 -SE
"""A command of CI's machines that no test can run: writes down how it was called, and answers as the test says.

A copy of this file, first on PATH, with the command's name. It uses nothing but the standard library.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main(program: Path, words: list[str]) -> int:
    """Gives the first answer to a command that begins like this one, once: it `makes` a file or a link to another
    stand-in, prints `out`, and ends with `code`. Returns 0 where there is none."""
    called, answers = program.parent / "called", program.parent / "answers"
    command = [program.name, *words]
    typed = ["<", sys.stdin.read().strip()] if "--password-stdin" in words else []
    with called.open("a", encoding="utf-8") as file:
        file.write(json.dumps([*command, *typed]) + "\n")
    left: list[dict[str, Any]] = json.loads(answers.read_text(encoding="utf-8"))
    for number, answer in enumerate(left):
        to = answer["to"].split()
        if command[: len(to)] != to:
            continue
        answers.write_text(json.dumps(left[:number] + left[number + 1 :]), encoding="utf-8")
        if name := answer.get("makes"):
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            another = program.with_name(Path(name).name)
            Path(name).symlink_to(another) if another.exists() else Path(name).write_text("", encoding="utf-8")
        sys.stdout.write(answer.get("out", ""))
        return int(answer.get("code", 0))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[0]).resolve(), sys.argv[1:]))
