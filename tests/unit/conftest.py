"""Unit tests run in this process alone: one that starts a process or opens a socket fails."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3.util.connection

PROCESSES = frozenset(
    {"subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.exec", "os.system", "pty.spawn"}
)
# urllib3 binds a socket while it is imported, to learn whether there is IPv6: it is imported here, before any test.
assert urllib3.util.connection.HAS_IPV6 is not None
FORBIDDEN = PROCESSES | {"socket.connect", "socket.bind"}
_of_running_test: list[list[str]] = []


def _refuse(event: str, _: tuple[object, ...]) -> None:
    if event in FORBIDDEN and _of_running_test:
        _of_running_test[-1].append(event)
        raise RuntimeError(f"{event} in a unit test: it belongs to tests/component")


# It stays until the process ends, in which other kinds of tests may run too.
sys.addaudithook(_refuse)


@pytest.fixture(autouse=True)
def forbidden_events() -> Iterator[list[str]]:
    """What the test did that a unit test may not do, also where the code under test catches the error."""
    events: list[str] = []
    _of_running_test.append(events)
    yield events
    _of_running_test.remove(events)
    assert not events


@pytest.fixture
def state_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where hvdcloud keeps what it remembers of clusters; it does not exist yet."""
    monkeypatch.setenv("HVDCLOUD_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"
