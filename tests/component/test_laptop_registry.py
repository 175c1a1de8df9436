"""The registry that hosts pull from: for who has its password, and for no longer than it is needed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import requests

from hvdcloud.providers.ssh import laptop_registry as module
from hvdcloud.providers.ssh.laptop_registry import laptop_registry
from tests.support.harness import until

WAITS = """
import sys
from types import SimpleNamespace
from hvdcloud.providers.ssh.laptop_registry import laptop_registry

with laptop_registry(SimpleNamespace(base_url="http+docker://localhost")) as registry:
    print(registry.port, flush=True)
    sys.stdin.read()
"""


class Engine:
    """docker-py's client of an engine that pulls nothing."""

    base_url = "http+docker://localhost"

    def inspect_image(self, name: str) -> Any:
        from docker.errors import ImageNotFound

        raise ImageNotFound(name)

    def pull(self, *_: Any, **__: Any) -> list[dict[str, Any]]:
        return [{"error": "no such host"}]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "hvdcloud" / "registry"


def answers(port: int, login: tuple[str, str] | None = None) -> int:
    """The status with which it answers; 0: nothing listens there."""
    try:
        return requests.get(f"http://127.0.0.1:{port}/v2/", auth=login, timeout=300).status_code
    except requests.ConnectionError:
        return 0


needs_program = pytest.mark.skipif(not shutil.which(module.PROGRAM), reason="docker-registry is missing: make registry")


@needs_program
def test_it_answers_who_has_its_password_and_ends_with_the_block() -> None:
    with laptop_registry(Engine()) as registry:
        assert answers(registry.port) == 401
        assert answers(registry.port, (registry.credentials["username"], registry.credentials["password"])) == 200
    assert answers(registry.port) == 0


@needs_program
def test_a_command_that_is_killed_leaves_none() -> None:
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root
    )
    assert process.stdout is not None
    port = int(process.stdout.readline())
    assert answers(port) == 401
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    until(lambda: answers(port) == 0, what="the registry to end")
