"""gcloud in processes that begin with its modules loaded, which takes most of the second that a command needs.

gcloud's own starter runs this in place of `lib/gcloud.py`, whose path is the first argument. A line of standard input
asks for a command, in a process of its own; the answer is its exit code. What one has loaded, later ones begin with.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(sys.argv[1]).parent))
gcloud = importlib.import_module("gcloud")


def command(asked: dict[str, Any], modules: int) -> None:
    """Be the command, and say which modules it has loaded."""
    os.environ.update(asked["environ"], CLOUDSDK_PYTHON_ARGS="-S")
    for number, name in ((0, os.devnull), (1, asked["out"]), (2, asked["err"])):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), number)
    sys.argv[1:] = asked["arguments"]
    code: Any = 1
    try:
        gcloud.main()
    except SystemExit as end:
        code = end.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        with os.fdopen(modules, "w") as pipe:
            pipe.write("\n".join(sys.modules))
        os._exit(code if isinstance(code, int) else bool(code))


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            command(json.loads(line), theirs)
        os.close(theirs)
        with os.fdopen(ours) as pipe:
            names = pipe.read().split()
        _, status = os.waitpid(child, 0)
        print(os.WEXITSTATUS(status), file=answers, flush=True)
        for name in names:
            # What cannot be imported by its name, every command loads for itself.
            with contextlib.suppress(Exception):
                importlib.import_module(name)


if __name__ == "__main__":
    main()
