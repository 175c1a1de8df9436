"""Nodes, a laptop, VMs and a server that several files use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# pytest-xdist's own process loads this file too, and runs no test: what takes time is loaded by the fixtures.
if TYPE_CHECKING:
    from tests.support.harness import Project
    from tests.support.nodes import NodeCluster
    from tests.support.scripted_api import Script
    from tests.support.vanishing import Laptop, NewVm, Program, Vm


@pytest.fixture(autouse=True)
def no_git_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """The developer's own stays out of the tests."""
    for variable in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(variable, os.devnull)


@pytest.fixture
def cluster() -> Iterator[NodeCluster]:
    """Two nodes with the real node program."""
    from tests.support.nodes import node_cluster

    with node_cluster() as cluster:
        yield cluster


@pytest.fixture
def node_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process is on a node whose root folder this is."""
    monkeypatch.setenv("HVDCLOUD_NODE_ROOT", str(tmp_path))
    return tmp_path


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """An empty folder as a project, on a machine without any cluster."""
    from tests.support.harness import Project

    (tmp_path / "project").mkdir()
    return Project(folder=tmp_path / "project", state=tmp_path / "state", name="digits")


@pytest.fixture
def script() -> Iterator[Script]:
    """A server that gives the answers of the test."""
    from tests.support.scripted_api import Script

    script = Script()
    yield script
    script.close()


@pytest.fixture
def laptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Laptop:
    """A person's machine, which waits a few seconds for nodes that do not answer."""
    from hvdcloud.lifecycle import down
    from hvdcloud.remote import connection
    from tests.support.vanishing import Laptop

    monkeypatch.setenv("HVDCLOUD_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(down, "SWITCH_OFF_SECONDS", 0.0)
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 6.0)
    monkeypatch.setattr(connection, "ALIVE_SECONDS", 0.2)
    monkeypatch.setattr(connection, "ANSWER_SECONDS", 3.0)  # A busy machine takes its time too.
    return Laptop(tmp_path)


@pytest.fixture
def new_vm() -> Iterator[NewVm]:
    from tests.support.vanishing import Vm

    vms: list[Vm] = []

    def make(programs: dict[str, Program]) -> Vm:
        vms.append(Vm(programs))
        return vms[-1]

    yield make
    for vm in vms:
        vm.close()
