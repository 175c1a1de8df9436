"""The Compute API's emulator as a process of its own, so that it takes no time from what is measured."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.bench.measure import BenchError
from tests.bench.workplace import REPOSITORY
from tests.standins.compute import BootDelays, Delays

ENDING_SECONDS = 20


class EmulatorProcess:
    """A context: `python -m tests.standins.compute` whose VMs are records.

    Attributes:
        folder: for the measurement; gone at the end.
        environment: for processes that are to use it.
    """

    def __enter__(self) -> EmulatorProcess:
        self._temporary = tempfile.TemporaryDirectory(prefix="hvdcloud-bench-")
        self.folder = Path(self._temporary.name)
        key = self.folder / "key.json"
        self.environment = {"GOOGLE_APPLICATION_CREDENTIALS": str(key)}
        argv = [sys.executable, "-m", "tests.standins.compute", "--port", "0", "--credentials", str(key)]
        # Ctrl-C is for the benchmark, which then ends the emulator.
        self._process = subprocess.Popen(
            argv, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            raise BenchError(f"{' '.join(argv)} did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._temporary.cleanup()

    def end_of_life(self) -> Sequence[dict[str, Any]]:
        """Make it as it was at the start: a list of what others have done takes time.

        Returns:
            every call that was made, in order.

        Raises:
            BenchError: a VM, a disk or a firewall rule is left.
        """
        if left := self._command("GET", "state")["left"]:
            raise BenchError(f"{len(left)} object(s) are left: {', '.join(left[:5])}")
        calls: list[dict[str, Any]] = self._command("GET", "requests")["requests"]
        self._command("POST", "reset")
        return calls

    def _command(self, http: str, what: str) -> Any:
        request = urllib.request.Request(f"{self.url}/_emulator/{what}", method=http)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)


def delays() -> dict[str, float]:
    """Seconds that the emulator's own operations take, by what is waited for."""
    operations, boot = Delays(), BootDelays()
    return {
        "up": round(operations.start + operations.create + sum(each for each, _ in boot.reports()) + boot.ready, 3),
        "down": round(operations.start + operations.delete, 3),
    }
