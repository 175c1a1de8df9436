"""What a command loads before it has to: everybody waits for that at every start."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


def loaded(code: str) -> set[str]:
    """The modules of a new Python after this code."""
    program = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("module", ["launch", "run.agent", "run.prepare", "run.rank", "run.follow", "mesh.join"])
def test_what_a_run_starts_on_a_node_loads_nothing_that_sends_notices(module: str) -> None:
    assert not loaded(f"import hvdcloud.node.{module}") & {"http.client", "ssl", "hvdcloud.runs.notice"}


@pytest.mark.parametrize("module", ["run.agent", "run.prepare", "run.rank", "mesh.join", "boot.activity"])
def test_what_every_node_starts_loads_neither_the_state_of_runs_nor_what_fetches_data(module: str) -> None:
    rare = {"hvdcloud.runs.state", "hvdcloud.node.data.sets", "datetime", "platform"}
    assert not loaded(f"import hvdcloud.node.__main__, hvdcloud.node.{module}") & rare


def test_launch_does_not_load_what_it_needs_only_once_its_nodes_boot() -> None:
    later = {"fabric", "paramiko", "hvdcloud.lifecycle.run", "hvdcloud.lifecycle.down", "hvdcloud.lifecycle.logs"}
    later |= {"hvdcloud.lifecycle.mirror", "hvdcloud.runs.state", "hvdcloud.storage.base", "hvdcloud.remote.ssh"}
    assert not loaded("import hvdcloud.cli.main, hvdcloud.lifecycle.launch, hvdcloud.lifecycle.run_options") & later


def test_the_engine_is_reached_without_paramiko_and_over_ssh_with_it() -> None:
    connect = "import os\nfrom hvdcloud import engine\nfrom hvdcloud.errors import NodeError\n"
    connect += "def try_it(address):\n    os.environ['DOCKER_HOST'] = address\n    try:\n        engine.connect()\n"
    connect += "    except NodeError as error:\n        assert 'paramiko package' not in error.message, error.message\n"
    here = connect + "try_it('tcp://127.0.0.1:1')\n"
    assert "docker.api.client" in loaded(here)
    assert not loaded(here) & {"paramiko", "docker.transport.sshconn"}
    assert {"paramiko", "docker.transport.sshconn"} <= loaded(here + "try_it('ssh://nobody@127.0.0.1:1')\n")


@pytest.mark.parametrize("begin", ["early.EarlyChecks(context, None)", "doctor.doctor(context)"])
def test_docker_is_loaded_before_the_threads_that_check(begin: str) -> None:
    """Two threads that import different parts of docker-py first may wait for each other: an error in one of them."""
    program = f"""
from types import SimpleNamespace as Namespace
from hvdcloud.lifecycle import doctor, early, up

class Begun(Exception):
    pass

def begun(*_, **__):
    raise Begun

early.threading.Thread = up.make_spec = begun
context = Namespace(platform=Namespace(checks=lambda spec: []), console=None)
try:
    {begin}
except Begun:
    pass
"""
    assert {"docker.errors", "docker.api.client"} <= loaded(program)
