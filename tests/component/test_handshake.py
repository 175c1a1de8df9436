"""Laptop and nodes run one version of hvdcloud: another one is refused, and so is a node that asks for too much."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import paramiko
import pytest

from hvdcloud.cluster.record import ClusterRecord, MemberRecord
from hvdcloud.config.model import Config
from hvdcloud.errors import NodeError, UsageError
from hvdcloud.lifecycle.context import Context
from hvdcloud.lifecycle.down import down
from hvdcloud.lifecycle.resize import resize
from hvdcloud.lifecycle.run import start
from hvdcloud.lifecycle.run_spec import RunOptions
from hvdcloud.lifecycle.status import status
from hvdcloud.node import program
from hvdcloud.providers.base import NodeBucket
from hvdcloud.remote.join import join, spec_of
from hvdcloud.remote.keys import new_key_pair, write_key_pair
from tests.support.vanishing import Laptop, NewVm, Program, Vm, says

VERBS = {"hvdcloud-node state": says('{"runs": []}\n'), "hvdcloud-node flush": says('{"runs": {}}\n')}


def joined(laptop: Laptop, vm: Vm) -> ClusterRecord:
    """What the laptop remembers of a cluster after its only node has joined."""
    context, cluster, _ = laptop.context([vm])
    write_key_pair(context.state.key_file, new_key_pair("laptop"))
    join(context.state, spec_of(context.state, cluster, nodes=1), cluster.nodes, made=cluster.nodes)
    record = context.state.load()
    assert record is not None
    return record


@pytest.mark.parametrize("answer", [{"gpus": 0}, {"version": "0123456789ab"}, {"version": None}, {"version": [1]}])
def test_a_node_of_another_version_does_not_join(laptop: Laptop, new_vm: NewVm, answer: Mapping[str, Any]) -> None:
    vm = new_vm({"hvdcloud-node join": says(json.dumps(answer))})
    with pytest.raises(UsageError, match="node digits-0 runs another version of hvdcloud than this machine") as raised:
        joined(laptop, vm)
    assert raised.value.hint == "hvdcloud down --name digits, then hvdcloud up makes nodes of this version"


def of_another_version(laptop: Laptop, vm: Vm) -> Context:
    """A cluster that an older hvdcloud has made."""
    context, _, _ = laptop.context([vm])
    context.state.update(lambda record: replace(record, version="0123456789ab", size=1))
    return context


def test_a_cluster_of_another_version_gets_no_run_and_no_nodes(laptop: Laptop, new_vm: NewVm) -> None:
    vm = new_vm({})
    with of_another_version(laptop, vm) as context:
        for change in (lambda: start(context, context.cluster(), RunOptions()), lambda: resize(context, 2)):
            with pytest.raises(UsageError, match="cluster digits runs another version of hvdcloud") as raised:
                change()
            assert "hvdcloud down --name digits" in raised.value.hint
    assert not vm.asked.is_set()


def test_a_cluster_of_another_version_is_seen_and_can_be_deleted(laptop: Laptop, new_vm: NewVm) -> None:
    laptop.keep_manifest(0, complete=True)
    with of_another_version(laptop, new_vm(VERBS)) as context:
        assert not status(context).runs_unknown
        assert not down(context).nothing_to_do


def hears(*answers: str) -> Program:
    """A verb that reads the line that it is sent, and has its answers ready."""

    def run(channel: paramiko.Channel) -> None:
        with channel.makefile("rb") as lines:
            lines.readline()
            for answer in answers:
                channel.sendall(f"{answer}\n".encode())
        channel.send_exit_status(0)
        channel.close()

    return run


@pytest.mark.parametrize("want", ["[7]", "[-1]", "[0, 0]", "{}", "[" * 5000, "[1e999]"])
def test_a_node_that_asks_for_what_the_project_has_not_gets_nothing(
    laptop: Laptop, new_vm: NewVm, tmp_path: Path, want: str
) -> None:
    answer = f'{{"want": {want}}}' if "[[" not in want else f'{{"want": {want}'
    context, cluster, machines = laptop.context([new_vm({"hvdcloud-node code": hears(answer)})])
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").touch()
    context.config = Config.model_validate({"name": "digits", "nodes": 1})
    context.config._project_dir = tmp_path / "project"
    node = MemberRecord(name="digits-0", gpus=0, interface="eth0")
    context.state.save(ClusterRecord(id=cluster.id, nodes=(node,), size=1, version=program.version()))
    machines.__dict__["bucket_as_seen_by_nodes"] = lambda _: NodeBucket(bucket="gs://bucket")
    with pytest.raises(NodeError, match=r"digits-0(: `code` ended| asks for files that the project does not have)"):
        start(context, cluster, RunOptions())
