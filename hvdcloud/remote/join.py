"""How nodes become members of their cluster: pinned host keys, and the mesh key over the pinned connection."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hvdcloud.cluster.model import Cluster, ClusterSpec, Node
from hvdcloud.cluster.record import ClusterRecord, MemberRecord
from hvdcloud.errors import HvdcloudError, NodeError, UsageError, first_of
from hvdcloud.json_values import text
from hvdcloud.node import program
from hvdcloud.remote.keys import KeyPair, new_key_pair, no_key, pin, pinned, read_key_pair, write_key_pair
from hvdcloud.remote.ssh import Fleet
from hvdcloud.runs.reports import whole
from hvdcloud.visible import says

if TYPE_CHECKING:
    from hvdcloud.cluster.state import ClusterState


def spec_of(state: ClusterState, cluster: Cluster, *, nodes: int) -> ClusterSpec:
    """What to ask the provider for, for more nodes of a cluster that exists.

    Raises NodeError: the cluster's key is not on this machine.
    """
    from hvdcloud.config.data import DataConfig

    login = read_key_pair(state.key_file)
    if login is None:
        raise no_key(cluster.name)
    record = state.record_of(cluster.id)
    return ClusterSpec(
        name=cluster.name,
        id=cluster.id,
        owner=cluster.owner,
        nodes=nodes,
        image=cluster.image,
        bucket=cluster.bucket,
        authorized_key=login.public,
        created=cluster.created,
        data={name: DataConfig(source=source) for name, source in record.mounts.items()} if record else {},
    )


def join(
    state: ClusterState,
    spec: ClusterSpec,
    nodes: Sequence[Node],
    *,
    made: Sequence[Node] = (),
    needed: Collection[str] | None = None,
    active_run: str | None = None,
) -> None:
    """Pin host keys, send every node the mesh key and the pins of all others, and record the nodes as members.

    May be repeated. From then on the cluster has `spec.nodes` nodes.

    Args:
        nodes: all that exist, with addresses.
        made: those of them that were made just now. Their host keys were read through the provider and replace what
            was pinned under their names; of all others the pinned keys stay.
        needed: the names of those that must answer; the others learn of their new peers if they do. None: all.
        active_run: continues meanwhile, so that a node that was made now is part of it.

    Raises:
        NodeError: one that is needed does not answer, or is not the node that was pinned.
        UsageError: one runs another version of hvdcloud.
    """
    ready = {node.name: node for node in made}
    keys = {**pinned(state), **{node.name: node.host_key for node in made if node.host_key}}
    nodes = pin_known(state, [ready.get(node.name, node) for node in nodes], keys)
    if (mesh := read_key_pair(state.mesh_key_file)) is None:
        mesh = new_key_pair(f"hvdcloud-{spec.name}-mesh")
        write_key_pair(state.mesh_key_file, mesh)
    payload = _payload(nodes, mesh=mesh)
    with contextlib.closing(Fleet(nodes, state)) as fleet:
        outcomes = fleet.each_outcome(lambda session: session.call("join", payload=payload))
    answers: dict[str, dict[str, Any]] = {}
    failed: list[HvdcloudError] = []
    for node, outcome in zip(nodes, outcomes, strict=True):
        if not isinstance(outcome, HvdcloudError):
            answers[node.name] = outcome
        elif needed is None or node.name in needed:
            failed.append(outcome)
    failed += _unreached(nodes, answers)
    if failed:
        raise first_of(failed)
    for name, answer in answers.items():
        refuse_other_version(text(answer.get("version")), f"node {name}", name=spec.name)
    _remember(state, spec, nodes, answers, new=ready.keys(), active_run=active_run)


def refuse_other_version(version: str, what: str, *, name: str) -> None:
    """Raise UsageError unless nodes whose program has this version run the same one as this machine sends with images.

    Args:
        what: the nodes, in words.
        name: of the cluster.
    """
    if version != program.version():
        raise UsageError(
            f"{what} runs another version of hvdcloud than this machine",
            hint=f"hvdcloud down --name {name}, then hvdcloud up makes nodes of this version",
        )


def pin_known(state: ClusterState, nodes: Sequence[Node], keys: Mapping[str, str]) -> list[Node]:
    """Pin the nodes whose host key is known, and return them with it, in order."""
    known = [replace(node, host_key=keys[node.name]) for node in nodes if node.name in keys]
    known.sort(key=lambda node: node.index)
    pin(state, known)
    return known


def _payload(nodes: Sequence[Node], *, mesh: KeyPair) -> dict[str, Any]:
    """What `join` of the node program reads (node/mesh/join.py)."""
    hosts = [
        {
            "name": node.name,
            "address": node.internal_address or node.name,
            "port": node.internal_port,
            "host_key": node.host_key,
        }
        for node in nodes
    ]
    # Between machines of the user's there may be firewalls that nothing here knows of.
    check = {"check": True} if any(node.host for node in nodes) else {}
    return {"private_key": mesh.private, "public_key": mesh.public, "hosts": hosts, **check}


def _unreached(nodes: Sequence[Node], answers: Mapping[str, Mapping[str, Any]]) -> list[HvdcloudError]:
    """An error for each two nodes that this machine reaches, and that do not reach each other."""
    there = {node.name: node for node in nodes}
    errors: list[HvdcloudError] = []
    for name, answer in answers.items():
        for other, why in (answer.get("unreached") or {}).items():
            if other in answers:
                peer = there[other]
                errors.append(
                    NodeError(
                        f"{there[name].host} does not reach {peer.host} at {peer.internal_address}:"
                        f"{peer.internal_port}: {says(f'node {name}', why)}",
                        hint="let the hosts reach each other on all TCP ports above 1023; or name the address that "
                        f"leads there: ssh.hosts: {{host: {peer.host}, address: …}}",
                    )
                )
    return errors


def _remember(
    state: ClusterState,
    spec: ClusterSpec,
    nodes: Sequence[Node],
    answers: Mapping[str, Mapping[str, Any]],
    *,
    new: Collection[str],
    active_run: str | None,
) -> None:
    record = state.record_of(spec.id) or ClusterRecord(id=spec.id)
    before = {node.name: node for node in record.nodes}
    earlier_runs = tuple(run for run in record.runs if run != active_run)
    members = []
    for node in nodes:
        member, answer = before.get(node.name), answers.get(node.name)
        if answer is not None:
            member = replace(
                member or MemberRecord(name=node.name),
                gpus=whole(answer.get("gpus")) or 0,
                interface=text(answer.get("interface")),
                made_after=earlier_runs if node.name in new else member.made_after if member else (),
            )
        if member is not None:
            members.append(member)
    state.save(replace(record, size=spec.nodes, version=program.version(), nodes=tuple(members)))
