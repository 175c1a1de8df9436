"""What changed in the configuration since `up`, and the one command that applies it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from hvdcloud.cluster.model import Cluster
from hvdcloud.cluster.record import ClusterRecord
from hvdcloud.console import Console
from hvdcloud.lifecycle.changed_settings import changes_since_up, settings_of
from hvdcloud.lifecycle.context import Context
from tests.support.configs import load_config
from tests.support.views import cluster

GCE: dict[str, Any] = {
    "name": "digits",
    "provider": "gce",
    "nodes": 2,
    "gce": {"project": "p", "machine_type": "n1-standard-8", "gpu": None},
}
CLUSTER = cluster()


class Folder:
    """A project's folder, whose cluster is up with what stood there then."""

    def __init__(self, path: Path) -> None:
        self.path, self.environ = path, dict[str, str]()
        (path / "requirements.txt").write_text("numpy\n-r more.txt\n")
        (path / "more.txt").write_text("scipy\n")
        self.write(GCE)
        self.remember(self.context())

    def write(self, config: Mapping[str, Any], **more: Any) -> None:
        (self.path / "hvdcloud.yaml").write_text(yaml.safe_dump({**config, **more}))

    def context(self, **flags: Any) -> Context:
        given = {"nodes": None, **flags}
        config = load_config(self.path / "hvdcloud.yaml", flags=given, environ=self.environ)
        return Context(config, Console(), flags=flags.keys())

    def remember(self, context: Context) -> None:
        context.state.make()
        context.state.save(ClusterRecord(id=CLUSTER.id, settings=settings_of(context)))

    def changes(self, cluster: Cluster = CLUSTER, **flags: Any) -> tuple[str, str] | None:
        found = changes_since_up(self.context(**flags), cluster)
        return (found.message, found.hint) if found is not None else None


@pytest.fixture
def folder(tmp_path: Path, state_root: Path) -> Folder:
    return Folder(tmp_path)


def summary(changed: str) -> str:
    return f"cluster digits was made before this changed: {changed}"


AGAIN = "hvdcloud down --name digits && hvdcloud up --name digits"
RESIZE = "hvdcloud resize 4 --name digits"


@pytest.mark.parametrize(
    ("more", "changed", "command"),
    [
        ({"nodes": 4}, "nodes 2 → 4", RESIZE),
        ({"limits": {"idle": None, "max_cost": 5}},
         "limits.idle 30m → null, limits.max_cost null → 5.0", AGAIN),
        ({"checkpoints": {"bucket": "gs://other"}}, "checkpoints.bucket null → gs://other", AGAIN),
        ({"gce": {**GCE["gce"], "machine_type": "n1-standard-4"}, "nodes": 4},
         "nodes 2 → 4, gce.machine_type n1-standard-8 → n1-standard-4", AGAIN),
        ({"gce": {**GCE["gce"], "gpu": {"type": "nvidia-l4", "count": 1}}},
         "gce.gpu null → {type: nvidia-l4, count: 1}", AGAIN),
        ({"gce": {**GCE["gce"], "zones": ["us-central1-a"]}}, "gce.zones [] → [us-central1-a]", AGAIN),
    ],
)  # fmt: skip
def test_a_key_that_changed_is_named_with_the_command_that_applies_it(
    folder: Folder, more: dict[str, Any], changed: str, command: str
) -> None:
    folder.write(GCE, **more)
    assert folder.changes() == (summary(changed), f"{command} applies it")


@pytest.mark.parametrize("file", ["requirements.txt", "more.txt"])
def test_changed_requirements_are_never_ignored_silently(folder: Folder, file: str) -> None:
    (folder.path / file).write_text("pandas\n" if file == "more.txt" else "pandas\n-r more.txt\n")
    assert folder.changes() == (summary("requirements.txt"), f"{AGAIN} applies it")


def test_a_cluster_that_was_resized_is_what_its_user_wants(folder: Folder) -> None:
    resized = replace(CLUSTER, expected_nodes=4)
    assert folder.changes(resized) is None
    folder.write(GCE, nodes=4)
    assert folder.changes(resized) is None


def test_a_folder_that_no_node_has_mounted_is_named(folder: Folder) -> None:
    folder.write({"name": "digits", "provider": "local", "nodes": 2})
    folder.remember(folder.context())
    folder.environ = {"HVDCLOUD_DATA__VAL": "file:///data/val"}
    assert folder.changes() == (summary("data.val none → file:///data/val"), f"{AGAIN} applies it")
    folder.remember(folder.context())
    assert folder.changes() is None


def test_an_image_for_torchrun_has_no_horovod_and_one_with_horovod_has_all(folder: Folder) -> None:
    folder.write(GCE, run={"launcher": "torchrun"})
    assert folder.changes() is None
    folder.remember(folder.context())
    folder.write(GCE, run={"launcher": "each"})
    assert folder.changes() is None
    folder.write(GCE)
    assert folder.changes() == (summary("run.launcher torchrun → horovod"), f"{AGAIN} applies it")
