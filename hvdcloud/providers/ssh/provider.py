"""Nodes as containers on machines that the user reaches by SSH: one on each, with the machine's own network.

The laptop reaches a node's sshd through the host's, at 127.0.0.1 there; the nodes reach each other at their hosts'
addresses. Port and address are labels of the container, so that any laptop knows them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hvdcloud.cluster.model import (
    LABEL_CLUSTER,
    Cluster,
    ClusterSpec,
    Leftover,
    Node,
    NodeState,
    Plan,
)
from hvdcloud.errors import CapacityError, HvdcloudError, UsageError, first_of
from hvdcloud.json_values import whole_number
from hvdcloud.providers.base import Listing, NodeBucket, OnProgress, UnseenError, ignore_progress
from hvdcloud.providers.engine import view
from hvdcloud.providers.engine.containers import Maker
from hvdcloud.providers.engine.nodes import EngineNodes
from hvdcloud.providers.engine.provider import EngineProvider
from hvdcloud.providers.engine.requests import BUCKET_IN_NODE
from hvdcloud.providers.engine.view import EngineObjects
from hvdcloud.providers.ssh import images, openssh, preflight
from hvdcloud.providers.ssh.connection import Host
from hvdcloud.providers.ssh.hosts import Hosts, errors_in
from hvdcloud.providers.ssh.requests import LABEL_ADDRESS, LABEL_PORT, HostRequest, node_request
from hvdcloud.units import counted

if TYPE_CHECKING:
    from hvdcloud.config.ssh_hosts import SshMachinesConfig

_UNSEEN_HINT = "hvdcloud doctor shows each host; take one that is gone for good out of ssh.hosts"
_HOST = "hvdcloud-host"
"""Where a container was listed, in what an engine says of it."""


class SshProvider(EngineProvider):
    """Containers on the engines of several hosts."""

    name = "ssh"
    ready_seconds = 180.0

    def __init__(self, config: SshMachinesConfig, *, limits: Mapping[str, str] = MappingProxyType({})) -> None:
        """Nothing is asked yet; `limits`: when the nodes end themselves, by `limits` of engine/requests.py."""
        self._hosts = Hosts(config.hosts)
        self._limits = limits

    def close(self) -> None:
        """End the connections to all hosts."""
        self._hosts.close()

    def plan(self, spec: ClusterSpec) -> Plan:
        """A container for each node, on the first hosts. Running them costs nothing.

        Raises:
            HvdcloudError: a host does not answer, or cannot give its node the GPUs that it should.
        """
        return self._planned(spec, range(spec.nodes))

    def plan_growth(self, spec: ClusterSpec, indices: Sequence[int]) -> Plan:
        """More containers, each on the host of its number.

        Raises:
            CapacityError: there are not as many hosts. UsageError: one has another node of the cluster. Else as `plan`.
        """
        hosts = self._hosts.all
        if max(indices, default=0) >= len(hosts):
            raise CapacityError(
                f"ssh.hosts names {counted(len(hosts), 'host')}, too few for {spec.nodes} nodes of {spec.name}",
                hint="name more hosts in hvdcloud.yaml: each has one node",
            )
        cluster, chosen = self.cluster(spec.name), {hosts[index].name for index in indices}
        for node in cluster.nodes if cluster else ():
            if node.index not in indices and node.host in chosen:
                raise UsageError(
                    f"{node.host} has node {node.name}, which ssh.hosts names in another place now",
                    hint="put the hosts in their earlier order; a new one comes last, or in place of a lost one",
                )
        return self._planned(spec, indices)

    def _planned(self, spec: ClusterSpec, indices: Sequence[int]) -> Plan:
        """For these nodes, on the hosts of their numbers, as things are now."""
        index_of = {self._hosts.all[index].name: index for index in indices}

        def request(host: Host) -> HostRequest:
            facts = preflight.fit(host)
            return node_request(
                spec,
                index_of[host.name],
                host=host.name,
                address=facts.address or "",
                gpus=preflight.gpus_of(host, facts),
                environment=self._limits,
            )

        requests = self._hosts.require(request, [self._hosts[name] for name in index_of], only_reads=True)
        return Plan(spec=spec, requests=tuple(requests.values()), dollars_per_hour=0.0)

    def bucket_as_seen_by_nodes(self, bucket: str) -> NodeBucket:
        """In place of the folder of this machine each has one of its own."""
        return NodeBucket(bucket=f"file://{BUCKET_IN_NODE}", per_node=True)

    def create(self, plan: Plan, *, on_progress: OnProgress = ignore_progress) -> Sequence[Node]:
        """The image on all hosts, then the containers of all, then all are started."""
        spec, requests = plan.spec, {each.host: each for each in plan.requests if isinstance(each, HostRequest)}
        chosen = [self._hosts[name] for name in requests]
        images.bring(spec.image, self._hosts, chosen, on_progress=on_progress)
        makers = {host.name: Maker(host.api, on_progress=on_progress) for host in chosen}
        try:
            self._hosts.require(lambda host: makers[host.name].create(requests[host.name]), chosen)
            self._hosts.require(lambda host: makers[host.name].start(), chosen)
        except BaseException as error:
            # Only what this call made: a cluster of the same name that another user made meanwhile stays.
            undone = self._hosts.each(lambda host: makers[host.name].undo(), chosen)
            if isinstance(error, HvdcloudError):
                for name, left in undone.items():
                    lines = [left.message] if isinstance(left, HvdcloudError) else left
                    error.add_details(*(f"{name}: {line}" for line in lines))
            raise
        ids = {each for maker in makers.values() for each in maker.ids}
        cluster = self.cluster(spec.name)
        return [node for node in cluster.nodes if node.id in ids] if cluster else []

    def _with_address(self, node: Node, host_key: str) -> Node:
        return replace(node, state=NodeState.RUNNING, host_key=host_key)

    def cluster(self, name: str) -> Cluster | None:
        """From the labels of the containers on all hosts.

        Raises:
            UnseenError: none was found, but not every host answered.
            HvdcloudError: no host answered.
        """
        found, errors = self._clusters(f"{LABEL_CLUSTER}={name}")
        if found:
            return found[0]
        if errors:
            error = first_of([*errors.values()])
            raise UnseenError(
                f"{error.message}; a node of {name} may be there", hint=_UNSEEN_HINT, details=error.details
            )
        return None

    def list(self) -> Listing:
        """Every cluster on these hosts. Raises HvdcloudError: no host answered."""
        found, errors = self._clusters()
        return Listing(clusters=tuple(found), unseen=_unseen(errors), cost="", hint=_UNSEEN_HINT)

    def _clusters(self, *labels: str) -> tuple[Sequence[Cluster], Mapping[str, HvdcloudError]]:
        """The clusters with these labels, and the hosts that did not answer."""
        results = self._hosts.each(lambda host: _objects(host, *labels), only_reads=True)
        errors = errors_in(results)
        if len(errors) == len(results):
            raise first_of([*errors.values()])
        seen = [result for result in results.values() if isinstance(result, EngineObjects)]
        objects = EngineObjects(
            containers=tuple(container for each in seen for container in each.containers),
            others=tuple(other for each in seen for other in each.others),
        )
        found = view.describe_clusters(objects, provider=self.name, describe=self._node)
        return [replace(each, unseen=_unseen(errors)) for each in found], errors

    def _node(self, container: dict[str, Any]) -> Node:
        """A node whose sshd listens on its host's loopback interface, and at the address for the others."""
        host, labels = self._hosts[container[_HOST]], container["Labels"]
        port = whole_number(labels.get(LABEL_PORT))
        return replace(
            view.node_of(container),
            address=None,
            port=port,
            internal_address=labels.get(LABEL_ADDRESS),
            internal_port=port,
            host=host.name,
            proxy_command=openssh.proxy_command(host.config, port, control=host.control),
        )

    def _engine_of(self, node: Node) -> EngineNodes:
        return _engine_nodes(self._hosts[node.host])

    def _destroy(self, name: str, indices: set[int] | None, *, on_progress: OnProgress) -> Sequence[Leftover]:
        """A host that does not answer is a leftover, unless all of these nodes were found on others."""
        found = next(iter(self._clusters(f"{LABEL_CLUSTER}={name}")[0]), None)
        there = {node.index for node in found.nodes} if found is not None else set()
        everywhere = found is not None and (found.has_all_nodes if indices is None else indices <= there)

        def destroy(host: Host) -> Sequence[Leftover]:
            return _engine_nodes(host).destroy(name, on_progress=on_progress, indices=indices)

        left: list[Leftover] = []
        for host, result in self._hosts.each(destroy).items():
            if not isinstance(result, HvdcloudError):
                left += [replace(each, object=f"{each.object} on {host}") for each in result]
            elif not everywhere or any(node.host == host for node in (found.nodes if found else ())):
                what = f"host {host}, which may have a node of {name}"
                left.append(Leftover(object=what, reason=result.message, delete_with=f"hvdcloud down --name {name}"))
        return left


def _engine_nodes(host: Host) -> EngineNodes:
    return EngineNodes(host.api, by_hand=host.by_hand)


def _objects(host: Host, *labels: str) -> EngineObjects:
    found = _engine_nodes(host).objects(*labels)
    return replace(found, containers=tuple({**each, _HOST: host.name} for each in found.containers))


def _unseen(errors: Mapping[str, HvdcloudError]) -> tuple[str, ...]:
    return tuple(f"host {host}" for host in errors)
