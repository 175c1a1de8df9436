"""A process of its own that deletes everything once the time is over, or once the process that started it is gone.

It ignores what a closed terminal and Ctrl-C send. Where this machine is off, Compute Engine's own limit ends the VMs.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parents[2]
STOP_SECONDS = 120.0
"""For a command that is under way, which rolls back what it was making."""
PAUSES = (10.0, 30.0, 60.0, 120.0, 300.0)
"""Between attempts to delete."""
_LOOK_SECONDS = 5.0


class HardEnd:
    """A context: armed while it is open, until `disarm`.

    Args:
        command: deletes everything; exit code 0: it is proven that nothing is left.
        seconds: by this machine's clock, which also counts while it sleeps.
        log: what it did.
    """

    def __init__(self, command: Sequence[str], *, seconds: float, log: Path) -> None:
        argv = [sys.executable, "-m", "tests.live.hard_end", str(time.time() + seconds), str(os.getpid())]
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [*argv, json.dumps(list(command))],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def __enter__(self) -> HardEnd:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Without `disarm` before, its turn begins now.
        assert self._process.stdin is not None
        self._process.stdin.close()

    def running(self, pid: int) -> None:
        """The command that is under way now; 0: none."""
        self._tell(f"running {pid}")

    def disarm(self) -> None:
        """Everything is deleted."""
        self._tell("done")
        self._process.wait(timeout=300)

    def _tell(self, words: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{words}\n".encode())
        self._process.stdin.flush()


def main(argv: Sequence[str]) -> int:
    """Wait; returns 0 once everything is deleted."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    deadline, parent, command = float(argv[0]), int(argv[1]), json.loads(argv[2])
    heard = b""
    while (left := deadline - time.time()) > 0:
        if not select.select([0], [], [], min(left, _LOOK_SECONDS))[0]:
            continue
        data = os.read(0, 4096)
        heard += data
        if b"done\n" in heard:
            return 0
        if not data:
            _say("the process that started this has ended, and not everything was deleted")
            break
    else:
        _say("the time is over")
        # It holds the other end of the pipe: the number is still its own.
        with contextlib.suppress(ProcessLookupError):
            os.kill(parent, signal.SIGKILL)
    words = [line.split() for line in heard.splitlines()]
    running = next((int(line[1]) for line in reversed(words) if line[0] == b"running"), 0)
    if running:
        _stop(running)
    return delete(command)


def _stop(pid: int) -> None:
    """As Ctrl-C would: it rolls back; by force if that takes too long."""
    deadline = time.monotonic() + STOP_SECONDS
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        while time.monotonic() < deadline:
            os.kill(pid, 0)
            time.sleep(0.1)
        os.kill(pid, signal.SIGKILL)


def delete(command: Sequence[str]) -> int:
    """Run the command until it succeeds, a few times; returns 0 if it has."""
    for pause in (*PAUSES, 0.0):
        code = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL).returncode
        if code == 0:
            _say("everything is deleted")
            return 0
        _say(f"exit code {code}: not everything is deleted" + (f"; again in {pause:g} s" if pause else ""))
        time.sleep(pause)
    return 1


def _say(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
