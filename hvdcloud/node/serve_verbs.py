"""`serve`: several verbs in one process, one after the other: a launch waits for one start of Python, not for four.

Standard input has a line {"verb": "join", "arguments": []} for each verb, and after it what the verb itself reads;
standard output has what it answers. The first line of standard output is {"serves": […]}. An earlier version answers
that it has no such verb, and is then asked verb by verb.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable

from hvdcloud.errors import UsageError
from hvdcloud.json_values import parse_object
from hvdcloud.node import machine
from hvdcloud.node.mesh.nodes import node_names

VERBS = ("join", "prepare", "launch", "logs")
_NEXT = {"": ("hvdcloud.node.mesh.join",), "join": ("tarfile", "hvdcloud.node.run.prepare")}
_NEXT_ON_HEAD = ("hvdcloud.node.launch",)
"""What `launch` needs: between `join` and `prepare` the laptop takes longer than after it."""


def main(run: Callable[[list[str]], int]) -> int:
    """Serve until the end of standard input, or a verb fails. Returns the exit code of the last verb.

    Args:
        run: carries out a verb with its arguments; returns its exit code.

    Raises:
        UsageError: a line asks for something else.
    """
    sys.stdout.write(json.dumps({"serves": VERBS}) + "\n")
    sys.stdout.flush()
    _load_what_follows("")
    code = 0
    # An archive with code ends with zeros, up to a whole block.
    while not code and (line := sys.stdin.buffer.readline().lstrip(b"\0")):
        request = parse_object(line) or {}
        verb, arguments = request.get("verb"), request.get("arguments")
        if verb not in VERBS or not isinstance(arguments, list):
            hint = "the image and hvdcloud must be the same version: hvdcloud build"
            raise UsageError(f"serve does not know what this line asks for: {line[:200]!r}", hint=hint)
        code = run([verb, *map(str, arguments)])
        if not code:
            _load_what_follows(str(verb))
    return code


def _load_what_follows(verb: str) -> None:
    """Import what the next verb needs while the laptop has still to ask for it.

    Args:
        verb: the last one; empty: none yet.
    """
    modules = _NEXT.get(verb, ())
    if verb == "join" and node_names()[:1] == [machine.name()]:
        modules += _NEXT_ON_HEAD
    for module in modules:
        importlib.import_module(module)
