"""`up` while what nodes need is not granted, or does not hold everywhere yet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cloud import NODES_ACCOUNT, PROJECT, Cloud
from tests.support.harness import Project, Screen

pytestmark = pytest.mark.engine


@pytest.fixture(autouse=True)
def access(cloud: Cloud) -> Iterator[None]:
    yield
    cloud.emulator.access.clear()


def set_up_just_now(project: Project) -> None:
    """What `setup` leaves when it has granted something."""
    granted = project.state / "_setup" / PROJECT / "granted"
    granted.parent.mkdir(parents=True)
    granted.touch()


@pytest.mark.nightly
def test_nodes_wait_for_the_right_to_pull_after_setup(cloud: Cloud, tmp_path: Path) -> None:
    project = cloud.project(tmp_path, "t-young", nodes=1)
    set_up_just_now(project)
    cloud.emulator.access.settle(NODES_ACCOUNT, seconds=600)
    with project.started("up") as process:
        screen = Screen(process)
        screen.wait_for("not allowed to pull yet")
        cloud.emulator.access.settle(NODES_ACCOUNT, seconds=0)
        assert process.wait(timeout=800) == 0, screen.text
    project.hvdcloud("down")
