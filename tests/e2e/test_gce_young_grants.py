"""`up` while what nodes need is not granted, or does not hold everywhere yet."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.cloud import BUCKET_POLICY, LAPTOP, NODES_ACCOUNT, PROJECT, Cloud, Earlier, running_cloud
from tests.support.harness import Project, Screen

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory, earlier: Earlier, image: str) -> Iterator[Cloud]:
    with running_cloud(tmp_path_factory.mktemp("cloud"), earlier=earlier) as cloud:
        yield cloud
        assert cloud.left() == []


@pytest.fixture(autouse=True)
def access(cloud: Cloud) -> Iterator[None]:
    yield
    cloud.emulator.access.clear()


def set_up_just_now(project: Project) -> None:
    """What `setup` leaves when it has granted something."""
    granted = project.state / "_setup" / PROJECT / "granted"
    granted.parent.mkdir(parents=True)
    granted.touch()


def test_nodes_wait_for_the_right_to_pull_after_setup(cloud: Cloud, tmp_path: Path) -> None:
    project = cloud.project(tmp_path, "t-young", nodes=1)
    set_up_just_now(project)
    cloud.emulator.access.settle(NODES_ACCOUNT, seconds=600)
    with project.started("up") as process:
        screen = Screen(process)
        screen.wait_for("not allowed to pull yet", seconds=150)
        cloud.emulator.access.settle(NODES_ACCOUNT, seconds=0)
        assert process.wait(timeout=800) == 0, screen.text
    project.hvdcloud("down")


def test_a_refusal_long_after_setup_ends_up_at_once_and_nothing_is_left(cloud: Cloud, tmp_path: Path) -> None:
    project = cloud.project(tmp_path, "t-refused", nodes=1)
    cloud.emulator.access.settle(NODES_ACCOUNT, seconds=600)
    said = project.hvdcloud("up", expect=5, timeout=300).err
    assert re.search(r"^error: node t-refused-0 failed at step pull; it says: .*denied", said, flags=re.MULTILINE)
    assert "boot log" in said
    assert "hvdcloud: failed: step pull" in said
    assert "not allowed to pull yet" not in said
    assert cloud.left() == []


def test_nodes_that_may_not_write_to_the_bucket_end_up_and_nothing_is_left(cloud: Cloud, tmp_path: Path) -> None:
    project = cloud.project(tmp_path, "t-bucket", nodes=2)
    with bucket_policy(cloud, [binding for binding in BUCKET_POLICY if binding["members"] == [LAPTOP]]):
        said = project.hvdcloud("up", expect=3, timeout=300).err
    assert re.search(
        rf"^error: {NODES_ACCOUNT}, which node t-bucket-[01] runs as, may not write objects to gs://bucket$",
        said,
        flags=re.MULTILINE,
    )
    assert f"gcloud storage buckets add-iam-policy-binding gs://bucket --member=serviceAccount:{NODES_ACCOUNT}" in said
    assert cloud.left() == []


@contextmanager
def bucket_policy(cloud: Cloud, bindings: Sequence[dict[str, Any]]) -> Iterator[None]:
    """Who may do what with objects, in the block."""
    assert cloud.storage.iam is not None
    before, cloud.storage.iam.bindings = cloud.storage.iam.bindings, bindings
    try:
        yield
    finally:
        cloud.storage.iam.bindings = before


def test_an_operator_whose_grants_are_too_young_is_told_which_permission_is_missing(
    cloud: Cloud, tmp_path: Path
) -> None:
    project = cloud.project(tmp_path, "t-operator")
    project.hvdcloud("build", "--push")
    cloud.emulator.access.settle(cloud.emulator.keys.email, seconds=600)
    said = project.hvdcloud("up", expect=3, timeout=300).err
    assert "→ ask an administrator for compute.instances." in said
    assert cloud.left() == []
