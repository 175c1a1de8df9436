"""From VMs that exist to nodes whose sshd answers: one loop for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from hvdcloud.cluster.model import Node, NodeState
from hvdcloud.errors import CredentialsError, HvdcloudError, NodeError
from hvdcloud.google.errors import ApiError
from hvdcloud.json_values import parse_object
from hvdcloud.node.mesh.host_key import is_host_key
from hvdcloud.providers.base import NodeProgress, OnProgress, Stage
from hvdcloud.providers.gce.api.client import ComputeClient
from hvdcloud.providers.gce.ops import node_rights
from hvdcloud.providers.gce.plan.request import METADATA_BUCKET, METADATA_IMAGE
from hvdcloud.providers.gce.resource_mapper import ResourceMapper, metadata_of
from hvdcloud.units import some
from hvdcloud.visible import log_of, words

PAUSE_SECONDS = 0.5
READS_PER_SECOND = 1000 / 60
"""A project may make some 1,500 calls a minute (https://cloud.google.com/compute/api-quota), and other tools want some
of them."""
LIST_SECONDS = 10.0
"""How often the VMs are listed to learn which are gone: a VM that is off does not tell."""
TAIL_LINES = 25
SILENT_SECONDS, SILENT_SECONDS_OF_8_GPUS = 300.0, 600.0
"""From when a VM runs until its startup script says something; it takes seconds, on the largest machines minutes."""
BOOTING, HOST = "booting", "host"
"""Steps: before the startup script has said anything, and before it opens the port."""
_LONGEST_STEP = 60

_AGAIN = "fix the cause, then hvdcloud up again"


@dataclass
class _Boot:
    """One node on its way."""

    node: Node
    step: str = BOOTING
    runs_since: float = float("inf")
    """In monotonic seconds, as far as lists have told."""
    host_key: str | None = None

    @property
    def zone(self) -> str:
        return self.node.id.partition("/")[0]


@dataclass
class Boots:
    """The nodes of one cluster on their way to ready."""

    client: ComputeClient
    mapper: ResourceMapper
    nodes: Sequence[Node]
    _: KW_ONLY
    cluster: str
    deadline: float
    """`time.monotonic()` value."""
    on_progress: OnProgress
    silence: float = SILENT_SECONDS
    """Seconds after which a VM that runs and says nothing has failed."""
    check_reachable: Callable[[Node], None] = lambda _: None
    """Called once, for the first node that has opened its port; raises HvdcloudError."""

    def __post_init__(self) -> None:
        self._boots = [_Boot(node) for node in self.nodes]
        self._reached = False

    def wait(self) -> list[Node]:
        """Poll until every node is ready; returns the nodes in their order, with addresses and host keys.

        Raises:
            NodeError: a node failed or is gone, or the deadline passed; details hold the end of its boot log.
            CredentialsError: a node may not use its bucket.
            ApiError: the API failed for longer than retries last.
        """
        listed = time.monotonic()
        while pending := [boot for boot in self._boots if boot.host_key is None]:
            if time.monotonic() >= self.deadline:
                where = some([f"{boot.node.name} is at step {boot.step}" for boot in pending])
                message = f"{len(pending)} of {len(self._boots)} nodes did not come up in time: {where}"
                raise NodeError(message, hint=_AGAIN, details=self._tail(pending[0]))
            if time.monotonic() >= listed + LIST_SECONDS:
                self._list_vms()
                listed = time.monotonic()
            # All of a cluster are in one zone.
            answers = self.client.guest_attributes(pending[0].zone, [boot.node.name for boot in pending])
            for boot in pending:
                if boot.node.name not in answers:
                    raise self._gone(boot)
                self._hear(boot, answers[boot.node.name].get("status"))
            self._check(pending)
            pause = max(PAUSE_SECONDS, len(pending) / READS_PER_SECOND)
            if any(boot.host_key is None for boot in pending):
                time.sleep(max(0.0, min(pause, self.deadline - time.monotonic())))
        # Addresses, and whether they all still run.
        self._list_vms()
        return [replace(boot.node, state=NodeState.RUNNING, host_key=boot.host_key) for boot in self._boots]

    def _check(self, boots: Iterable[_Boot]) -> None:
        """What cannot become ready ends before more is paid for it."""
        for boot in boots:
            if boot.step == BOOTING and time.monotonic() - boot.runs_since > self.silence:
                why = f"node {boot.node.name} has run for {self.silence:.0f} s and its startup script says nothing"
                raise NodeError(why, hint=_AGAIN, details=self._tail(boot))
            if not self._reached and boot.node.address and boot.step not in (BOOTING, HOST):
                self.check_reachable(boot.node)
                self._reached = True

    def _hear(self, boot: _Boot, text: str | None) -> None:
        status = parse_status(text)
        word = status.get("status")
        if word == "failed":
            raise self._failed(boot, status)
        if word == "ready":
            boot.host_key = str(status["host_key"])
        if word is None:
            return
        percent = status["percent"] if isinstance(status.get("percent"), int) else None
        said = words(word, most=_LONGEST_STEP)
        beside = f", {words(status['beside'], most=_LONGEST_STEP)}" if isinstance(status.get("beside"), str) else ""
        step = f"{said}{'' if percent is None else f' {percent} %'}{beside}"
        if step != boot.step:
            boot.step = step
            stage = Stage.DONE if word == "ready" else Stage.WORKING
            self.on_progress(NodeProgress(object=boot.node.name, step=said + beside, stage=stage, percent=percent))

    def _list_vms(self) -> None:
        """List the VMs: addresses of those that exist, and an error for one that is off or gone."""
        answer = self.client.instances(self.cluster)
        seen = {node.id: node for node in map(self.mapper.node, answer.items)}
        if not answer.unseen:
            unlisted = [boot.node.name for boot in self._boots if boot.node.id not in seen]
            hidden = self.client.instances_by_name(self._boots[0].zone, unlisted)
            seen |= {node.id: node for node in map(self.mapper.node, hidden)}
        for boot in self._boots:
            node = seen.get(boot.node.id)
            if node is not None:
                boot.node = node
                if node.state is NodeState.RUNNING:
                    boot.runs_since = min(boot.runs_since, time.monotonic())
                if node.state is NodeState.STOPPED:
                    message = f"node {node.name} stopped while coming up (at step {boot.step})"
                    hint = "hvdcloud up starts again; a Spot VM may have been taken away"
                    raise NodeError(message, hint=hint, details=self._tail(boot))
            elif not answer.unseen:
                raise self._gone(boot)

    def _failed(self, boot: _Boot, status: Mapping[str, Any]) -> HvdcloudError:
        step, cause = str(status.get("step", "?")), str(status.get("error", "")).strip()
        first = cause.splitlines()[-1] if cause else "no reason was given"
        node = f"node {boot.node.name}"
        if status.get("refused") in node_rights.STEPS:
            return self._refused(boot, str(status["refused"]), details=log_of(node, cause))
        details = "\n".join(filter(None, [log_of(node, cause), self._tail(boot)]))
        message = f"{node} failed at step {words(step, most=_LONGEST_STEP)}; it says: {words(first)}"
        hint = _AGAIN
        if step == "pull" and "denied" in cause.lower():
            account, metadata = self._account(boot)
            grant = node_rights.pull_grant(account, metadata.get(METADATA_IMAGE, ""))
            hint = f"{grant}; then hvdcloud up again" if grant else _AGAIN
        return NodeError(message, hint=hint, details=details)

    def _refused(self, boot: _Boot, step: str, *, details: str) -> CredentialsError:
        """The node may not use its bucket."""
        account, metadata = self._account(boot)
        bucket = metadata.get(METADATA_BUCKET, "").removeprefix("gs://").partition("/")[0]
        return CredentialsError(
            f"{account}, which node {boot.node.name} runs as, may not {node_rights.STEPS[step]} gs://{bucket}",
            hint=f"the bucket's owner can: {node_rights.bucket_grants(account, bucket)}; then hvdcloud up again",
            details=details,
        )

    def _account(self, boot: _Boot) -> tuple[str, Mapping[str, str]]:
        """Who a node is, and its metadata: as Compute Engine knows them, not as the node says."""
        vm = next(iter(self.client.instances_by_name(boot.zone, [boot.node.name])), {})
        account = next((str(each.get("email", "")) for each in vm.get("serviceAccounts", ())), "")
        return account or "ACCOUNT", metadata_of(vm)

    def _gone(self, boot: _Boot) -> NodeError:
        message = f"node {boot.node.name} is gone: it was preempted or deleted while coming up (at step {boot.step})"
        return NodeError(message, hint="hvdcloud up starts again; with gce.provisioning: standard none is preempted")

    def _tail(self, boot: _Boot) -> str:
        """The end of the boot log; trouble with it must not hide what it was to explain."""
        try:
            text = self.client.serial_output(boot.zone, boot.node.name)
        except (ApiError, HvdcloudError) as error:
            return f"(the boot log of {boot.node.name} cannot be read: {error})"
        lines = text.splitlines()[-TAIL_LINES:]
        return "\n".join([f"the end of {boot.node.name}'s boot log:", *lines]) if lines else ""


def parse_status(text: str | None) -> dict[str, Any]:
    """What a node wrote. Anything else than the known form says nothing: it comes from inside the VM."""
    status = parse_object(text or "{}")
    if status is None or (status.get("status") == "ready" and not is_host_key(status.get("host_key"))):
        return {}
    return status
