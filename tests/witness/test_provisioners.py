"""Other projects' own provisioners for Compute Engine make nodes at our stand-in, see them run and delete them.

Each has a virtual environment of its own, which `make witnesses` makes: neither is a dependency of anything here.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.standins.compute import Delays, Emulator

ZONE = "us-central1-a"
SECONDS = 120.0


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator(delays=Delays(start=0.005, create=0.02, delete=0.02, other=0.01)) as emulator:
        yield emulator


def seen_by(program: str, emulator: Emulator, folder: Path) -> Any:
    """What the script of this name has printed at last."""
    root = Path(__file__).parents[2]
    python = root / ".cache" / "witness" / program / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{program} is not installed in {python.parents[1]}: make witnesses")
    done = subprocess.run(
        [python, Path(__file__).with_name(f"{program}_node.py"), emulator.url, emulator.state.project, ZONE],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "GOOGLE_APPLICATION_CREDENTIALS": str(emulator.credentials_file(folder / "key.json")),
        },
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def refused(emulator: Emulator) -> list[tuple[str, int | None]]:
    """What was asked for and not granted."""
    return [(entry.method, entry.status) for entry in emulator.log.entries() if entry.status != 200]


def test_skypilot_makes_and_deletes_two_nodes(emulator: Emulator, tmp_path: Path) -> None:
    seen = seen_by("skypilot", emulator, tmp_path)
    head, worker = seen["created"]
    assert seen["head"] == head
    assert seen["statuses"] == {head: "UP", worker: "UP"}
    assert seen["addresses"].keys() == {head, worker}
    assert all(internal and external for internal, external in seen["addresses"].values())
    assert seen["left"] == []
    assert refused(emulator) == []
    assert emulator.state.left() == []


def test_dstack_makes_and_deletes_a_node(emulator: Emulator, tmp_path: Path) -> None:
    seen = seen_by("dstack", emulator, tmp_path)
    assert seen["instance"].startswith("dstack-main-digits-0-")
    assert all(seen["addresses"])
    assert seen["gone"]
    assert refused(emulator) == [("compute.instances.get", 404)]
    # It keeps the firewall rule of its network.
    assert [rule["name"] for rule in emulator.state.all_firewalls()] == [
        "dstack-ssh-in-projects-test-project-global-networks-default"
    ]
    assert emulator.state.instances() == emulator.state.all_disks() == []
