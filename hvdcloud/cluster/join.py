"""Which nodes make up a cluster: what this machine remembers of them, and how they get to know each other.

A cluster may grow, shrink and get nodes back. Labels say how large it is, but Docker's cannot be changed once a
container is there, and no label says whether a node has the mesh key. So the machine that made the cluster, the only
one that has its keys, remembers both, and what it remembers goes before the labels.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hvdcloud.cluster.model import SSH_PORT, Cluster, ClusterSpec, Node, NodeState
from hvdcloud.cluster.state import ClusterState
from hvdcloud.errors import HvdcloudError, NodeError

if TYPE_CHECKING:
    from hvdcloud.lifecycle.context import Context
    from hvdcloud.remote.keys import KeyPair


def as_known_here(cluster: Cluster) -> Cluster:
    """The cluster with the size that this machine gave it last; a node that has not joined is still starting."""
    facts = ClusterState(cluster.name).load()
    if facts.get("id") != cluster.id or "nodes" not in facts:
        return cluster
    members = joined(facts)
    return replace(
        cluster,
        expected_nodes=size(facts),
        nodes=tuple(
            node
            if node.name in members or node.state is not NodeState.RUNNING
            else replace(node, state=NodeState.STARTING)
            for node in cluster.nodes
        ),
    )


def size(facts: dict[str, Any]) -> int:
    """How many nodes the cluster is to have; files of earlier versions do not say it, and list them all."""
    return int(facts.get("size") or len(facts.get("nodes") or ()))


def joined(facts: dict[str, Any]) -> set[str]:
    """The names of the nodes that have the mesh key and each other's pins."""
    return {str(node["name"]) for node in facts.get("nodes") or ()}


def is_another(facts: Mapping[str, Any], node: Node) -> bool:
    """Whether a node was made anew since it was last known here, by its cluster's head (node/elastic/replace.py)."""
    made = next((each.get("made") for each in facts.get("nodes") or () if each["name"] == node.name), None)
    return bool(node.index and node.made and made and node.made != made)


def adopt_replaced_nodes(context: Context, cluster: Cluster) -> Cluster:
    """Pin the nodes that the head has made anew, with the host keys that they told their provider.

    Returns:
        the cluster; such a node that is not ready yet is starting.

    Raises:
        HvdcloudError: the provider does not say.
    """
    from hvdcloud.remote.keys import pin, pinned

    facts = context.state.load()
    if facts.get("id") != cluster.id:
        return cluster
    found = [node for node in cluster.nodes if node.state is NodeState.RUNNING and is_another(facts, node)]
    if not found:
        return cluster
    keys = context.provider.host_keys(found)
    known = [node for node in found if node.name in keys]
    if known:
        all_keys = {**pinned(context.state), **keys}
        there = [replace(node, host_key=all_keys.get(node.name)) for node in cluster.nodes]
        pin(context.state, [node for node in there if node.host_key and (node.address or node.proxy_command)])
        made = {node.name: node.made for node in known}
        # The head makes nodes anew for the run that goes on alone, which is the newest.
        earlier = list(facts.get("runs") or ())[:-1]
        nodes = [
            {**each, "made": made[each["name"]], "made_after": earlier} if each["name"] in made else each
            for each in facts["nodes"]
        ]
        context.state.save({**facts, "nodes": nodes})
        context.console.detail(f"made anew by the head, and pinned: {', '.join(made)}")
    starting = {node.name for node in found} - keys.keys()
    return replace(
        cluster,
        nodes=tuple(
            replace(node, state=NodeState.STARTING) if node.name in starting else node for node in cluster.nodes
        ),
    )


def lost_predecessors(facts: dict[str, Any]) -> set[tuple[int, str]]:
    """(index, run) where a node was made anew after the run, so that what its predecessor held is gone with it."""
    return {
        (int(str(node["name"]).rpartition("-")[2]), str(run))
        for node in facts.get("nodes") or ()
        for run in node.get("made_after") or ()
    }


def spec_of(context: Context, cluster: Cluster, *, nodes: int) -> ClusterSpec:
    """What to ask the provider for, for more nodes of a cluster that is there.

    Raises:
        NodeError: this machine has not the cluster's key.
    """
    from hvdcloud.remote.keys import read_key_pair

    login = read_key_pair(context.state.key_file)
    if login is None:
        raise NodeError(
            f"the key of cluster {cluster.name} is not on this machine",
            hint=f"use the machine that ran `hvdcloud up`; hvdcloud down --name {cluster.name} works from any",
        )
    return ClusterSpec(
        name=cluster.name,
        id=cluster.id,
        owner=cluster.owner,
        nodes=nodes,
        image=cluster.image,
        bucket=cluster.bucket,
        authorized_key=login.public,
        created=cluster.created,
    )


def forget(context: Context, names: Collection[str]) -> None:
    """Nodes of these names that appear from now on have not joined."""
    facts = context.state.load()
    kept = [node for node in facts.get("nodes") or () if node["name"] not in names]
    context.state.save({**facts, "size": size(facts), "nodes": kept})


def join(
    context: Context,
    spec: ClusterSpec,
    nodes: Sequence[Node],
    *,
    made: Sequence[Node] = (),
    needed: Collection[str] | None = None,
    active_run: str | None = None,
    keep_connections: bool = False,
) -> None:
    """Pin host keys, hand every node the mesh key and the pins of all over the pinned connection, and remember them.

    May be repeated. From then on the cluster has `spec.nodes` nodes.

    Args:
        nodes: all that are there, with addresses.
        made: those of them that were made just now. Their host keys were read through the provider and replace whatever
            was pinned under their names; of all others what is pinned stays.
        needed: the names of those that must answer; the others learn of their new peers if they do. None: all.
        active_run: goes on meanwhile, so that a node that was made now is part of it.
        keep_connections: for the rest of the command.

    Raises:
        NodeError: one that is needed does not answer, or is not the node that was pinned.
    """
    from hvdcloud.remote.keys import pin, pinned
    from hvdcloud.remote.ssh import Fleet

    keys = {**pinned(context.state), **{node.name: node.host_key for node in made}}
    ready = {node.name: node for node in made}
    nodes = [replace(ready.get(node.name, node), host_key=keys.get(node.name)) for node in nodes]
    nodes = sorted((node for node in nodes if node.host_key), key=lambda node: node.index)
    pin(context.state, nodes)
    mesh = _mesh_key(context, spec)
    payload = {
        "private_key": mesh.private,
        "public_key": mesh.public,
        "hosts": [
            {
                "name": node.name,
                "address": node.internal_address or node.name,
                "port": SSH_PORT,
                "host_key": node.host_key,
            }
            for node in nodes
        ],
    }
    fleet = Fleet(nodes, context.state)
    if keep_connections:
        context.keep(fleet)
    try:
        outcomes = fleet.each_outcome(lambda session: session.call("join", payload=payload))
    finally:
        if not keep_connections:
            fleet.close()
    answers: dict[str, dict[str, Any]] = {}
    failed: list[HvdcloudError] = []
    for node, outcome in zip(nodes, outcomes, strict=True):
        if not isinstance(outcome, HvdcloudError):
            answers[node.name] = outcome
        elif needed is None or node.name in needed:
            failed.append(outcome)
    if failed:
        failed[0].details = "\n".join(filter(None, [failed[0].details, *(other.message for other in failed[1:])]))
        raise failed[0]
    _remember(context, spec, nodes, answers, made={node.name for node in made}, active_run=active_run)


def _remember(
    context: Context,
    spec: ClusterSpec,
    nodes: Sequence[Node],
    answers: dict[str, dict[str, Any]],
    *,
    made: Collection[str],
    active_run: str | None,
) -> None:
    facts = context.state.load()
    if facts.get("id") != spec.id:
        facts = {}
    runs = list(facts.get("runs") or ())
    before = {str(node["name"]): node for node in facts.get("nodes") or ()}
    members = []
    for node in nodes:
        earlier, answer = before.get(node.name, {}), answers.get(node.name)
        if answer is not None:
            new = node.name in made
            members.append(
                {
                    "name": node.name,
                    "cores": answer["cores"],
                    "gpus": answer["gpus"],
                    "interface": answer["interface"],
                    "made": node.made,
                    "made_after": [run for run in runs if run != active_run] if new else earlier.get("made_after", []),
                }
            )
        elif earlier:
            members.append(earlier)
    context.state.save(
        {
            "id": spec.id,
            "created": spec.created.isoformat(),
            "image": spec.image,
            "bucket": spec.bucket,
            "size": spec.nodes,
            "nodes": members,
            "runs": runs,
        }
    )


def _mesh_key(context: Context, spec: ClusterSpec) -> KeyPair:
    """The cluster's, made when it is needed first: versions before this one did not keep it."""
    from hvdcloud.remote.keys import new_key_pair, read_key_pair, write_key_pair

    found = read_key_pair(context.state.mesh_key_file)
    if found is None:
        found = new_key_pair(f"hvdcloud-{spec.name}-mesh")
        write_key_pair(context.state.mesh_key_file, found)
    return found
