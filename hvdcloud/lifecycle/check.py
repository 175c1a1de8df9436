"""`hvdcloud check`: measures the nodes of a cluster before a long run, names bad ones and replaces them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from hvdcloud.check.findings import AllReduce, MachineFinding, all_reduce, machine_finding
from hvdcloud.check.pairs import rounds
from hvdcloud.check.verdict import Health, NodeVerdict, judge
from hvdcloud.cluster.confirm_cost import Consent
from hvdcloud.cluster.nodes_gone import not_whole
from hvdcloud.errors import ExitCode, HvdcloudError, InterruptedByUserError, NodeError, UsageError
from hvdcloud.interrupts import interrupted_once, uninterrupted
from hvdcloud.lifecycle.context import node_progress
from hvdcloud.lifecycle.horovod import hosts_of
from hvdcloud.lifecycle.resize import Change, add_nodes, refuse_if_unsaved
from hvdcloud.lifecycle.storage_tokens import lend
from hvdcloud.node.check.collective import deadline
from hvdcloud.node.check.machine_check import SECONDS as MACHINE_SECONDS
from hvdcloud.remote.join import spec_of
from hvdcloud.remote.ssh import Fleet, NodeRefusedError, Session
from hvdcloud.runs import horovod_args
from hvdcloud.runs.horovod_args import Host
from hvdcloud.units import counted

if TYPE_CHECKING:
    from hvdcloud.cluster.model import Cluster
    from hvdcloud.cluster.record import ClusterRecord
    from hvdcloud.lifecycle.context import Context

GLOO_SECONDS = 120
"""How long ranks wait for each other: a bad node may be very slow, and is to be measured, not given up."""
END_SECONDS = 30.0
MOST_AGAIN = 2
"""How often nodes are measured again before one is called bad."""
BUCKET_FOLDER = "hvdcloud-check"
"""In the bucket: an empty object for each node, below a folder for each cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What was measured, and which nodes are bad."""

    cluster: str
    nodes: Sequence[NodeVerdict]
    pairs: Sequence[AllReduce]
    together: AllReduce | None
    """The measurement of all ranks; None: there is one only, or the pair is all of them."""
    replaced: Sequence[NodeVerdict]
    """What was found of nodes that were bad; `nodes` has the figures of those in their places."""
    seconds: float

    @property
    def bad(self) -> list[str]:
        """The nodes that are bad."""
        return [each.node for each in self.nodes if each.health is Health.BAD]

    @property
    def exit_code(self) -> ExitCode:
        """5 with a bad node, else 0."""
        return ExitCode.NODE if self.bad else ExitCode.OK


def check(
    context: Context,
    *,
    seconds: float,
    size: int,
    replace_bad: bool = False,
    consent: Consent | None = None,
    force: bool = False,
) -> CheckResult:
    """Measure every node by itself, in pairs, and all together.

    Args:
        seconds: how long all-reduces are measured, in all.
        size: of the large message, in bytes.
        replace_bad: delete bad nodes, make new ones in their places, and measure again, once.
        force: also delete nodes that may hold checkpoints which are not in the bucket.

    Raises:
        UsageError: there is no such cluster, or a run is active.
        NodeError: the cluster is not whole, a node's program is older, or the head is bad and was to be replaced.
        CheckpointError: a node that was to be replaced has files that are nowhere else; nothing was changed.
        CapacityError, ImageError, TeardownError: as for `resize`.
        InterruptedByUserError: Ctrl-C; what ran on the nodes is ended.
    """
    started = time.monotonic()
    with context.state.lock("check"):
        found = _measure(context, seconds=seconds, size=size, replace_bad=replace_bad)
        if replace_bad and found.bad:
            _replace(context, found, consent or Consent(), force=force)
            again = _measure(context, seconds=seconds, size=size)
            found = replace(again, replaced=[each for each in found.nodes if each.health is Health.BAD])
    return replace(found, seconds=time.monotonic() - started)


def _measure(context: Context, *, seconds: float, size: int, replace_bad: bool = False) -> CheckResult:
    """Measure once. With `replace_bad` not all together if a node is bad: then all is measured again without it."""
    cluster = context.cluster()
    record = context.record(cluster)
    if not cluster.whole:
        raise not_whole(cluster, boot_log=context.provider.console)
    # Of the nodes as they are now: some may be new.
    context.keep(Fleet(cluster.nodes, context.state))
    lend(context, cluster)
    if active := next((state for state in context.run_states(cluster) if not state.done), None):
        raise UsageError(
            f"run {active.run} is active on cluster {cluster.name}, and a check would slow it down",
            hint=f"hvdcloud logs -f {active.run} follows it; hvdcloud stop --name {cluster.name} ends it",
        )
    promises = {node.name: context.platform.promise(node.index) for node in cluster.nodes}
    machines = _measure_machines(context, cluster, record)
    for _ in range(MOST_AGAIN):
        if not _suspects(judge([each.without_lasting_faults() for each in machines], [], promises=promises)):
            break
        # All nodes again: the figures are compared with each other, so they have to be of the same moment.
        again = _measure_machines(context, cluster, record)
        machines = [one.best_of(other) for one, other in zip(machines, again, strict=True)]
    reachable = {each.node for each in machines if not each.error}
    hosts = [host for host in hosts_of(context.config, record) if host.slots and host.name in reachable]
    collectives = _Collectives(context, cluster, record, size=size)
    pairs: list[AllReduce] = []
    together: AllReduce | None = None
    if f"{cluster.name}-0" in reachable:
        with collectives.ended():
            pairs = collectives.pairs(hosts, seconds=seconds)
            found_alone = _suspects(judge(machines, [], promises=promises))
            if suspects := _suspects(judge(machines, pairs, promises=promises)) - found_alone:
                repeated = collectives.pairs(hosts, seconds=seconds, only=suspects)
                second = {tuple(each.nodes): each for each in repeated}
                pairs = [each.best_of(second.get(tuple(each.nodes), each)) for each in pairs]
            judged = judge(machines, pairs, promises=promises)
            if not (replace_bad and any(each.health is Health.BAD for each in judged)):
                together = collectives.together(hosts, seconds=seconds)
    return CheckResult(
        cluster=cluster.name,
        nodes=judge(machines, pairs, promises=promises),
        pairs=pairs,
        together=together,
        replaced=(),
        seconds=0.0,
    )


def _suspects(found: Sequence[NodeVerdict]) -> set[str]:
    """The nodes that answer and are bad so far: they are measured again before they are called that."""
    return {each.node for each in found if each.health is Health.BAD and not each.machine.error}


def _measure_machines(context: Context, cluster: Cluster, record: ClusterRecord) -> list[MachineFinding]:
    """Every node by itself, all at once."""
    endpoint = context.storage_endpoint
    seen = context.provider.bucket_as_seen_by_nodes(bucket=cluster.bucket, bucket_endpoint=endpoint)
    folder = f"{BUCKET_FOLDER}/{cluster.name}/"
    payload = {
        "bucket": seen.bucket,
        "bucket_endpoint": seen.bucket_endpoint,
        "credentials": context.platform.storage_credentials(cluster.bucket, endpoint=endpoint, writes=folder),
    }

    def measure(session: Session) -> Mapping[str, Any]:
        # By this name nodes may replace an object, VMs (terraform/identity.tf) and those with a storage token.
        own = {"object": f"{folder}.hvdcloud/samples-{session.node.name}"}
        return session.call("check-machine", payload={**payload, **own}, timeout=MACHINE_SECONDS)

    fleet = context.fleet(cluster)
    with context.console.waiting("check", "processors, disks, GPUs and the bucket"):
        answers = fleet.each_outcome(measure)
    gpus = {node.name: node.gpus for node in record.nodes}
    found = []
    for session, answer in zip(fleet.sessions, answers, strict=True):
        name = session.node.name
        if isinstance(answer, NodeRefusedError):
            # It answers, and cannot be measured: its program is older, or a run has begun.
            raise answer
        if isinstance(answer, HvdcloudError):
            found.append(MachineFinding(node=name, error=answer.message))
            continue
        log = ""
        if gpus.get(name):
            # Its errors are a reason among several; a log that cannot be read is none.
            with contextlib.suppress(HvdcloudError):
                log = context.provider.console(session.node)
        found.append(machine_finding(name, answer, gpus=gpus.get(name, 0), boot_log=log))
    return found


class _Collectives:
    """All-reduces between nodes, started by the head with the command line that a run has."""

    def __init__(self, context: Context, cluster: Cluster, record: ClusterRecord, *, size: int) -> None:
        self._context = context
        self._cluster = cluster
        self._interface = record.nodes[0].interface
        self._size = size
        self._mark = f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{cluster.id}"

    def pairs(self, hosts: Sequence[Host], *, seconds: float, only: Collection[str] = ()) -> list[AllReduce]:
        """Every pair of nodes, in `seconds` of measuring together with `together`. `only`: the pairs of these nodes."""
        planned = rounds([host.name for host in hosts])
        each = self._each(hosts, seconds)
        if only:
            wanted = ([pair for pair in turn if {*pair} & {*only}] for turn in planned)
            planned = [turn for turn in wanted if turn]
        found: list[AllReduce] = []
        for number, pairs_now in enumerate(planned, start=1):
            said = f"all-reduces of {counted(len(pairs_now), 'pair')}, round {number} of {len(planned)}"
            jobs = [[Host(name=name, slots=1) for name in pair] for pair in pairs_now]
            found += self._run(jobs, seconds=each, said=said)
        return found

    def together(self, hosts: Sequence[Host], *, seconds: float) -> AllReduce | None:
        """All ranks; None: there is one only, or the pair is all of them."""
        if not self._more_than_a_pair(hosts):
            return None
        (found,) = self._run([hosts], seconds=self._each(hosts, seconds), said="an all-reduce of all ranks")
        return found

    def _each(self, hosts: Sequence[Host], seconds: float) -> float:
        return seconds / max(1, len(rounds([host.name for host in hosts])) + self._more_than_a_pair(hosts))

    def _more_than_a_pair(self, hosts: Sequence[Host]) -> bool:
        alone = len(hosts) == 2 and all(host.slots == 1 for host in hosts)
        return not alone and sum(host.slots for host in hosts) >= 2

    @contextlib.contextmanager
    def ended(self) -> Iterator[None]:
        """What runs on the nodes has ended after the block."""
        try:
            yield
        finally:
            with uninterrupted():
                # What cannot be reached ends its ranks by itself (node/check/collective.py).
                self._context.fleet(self._cluster).each_outcome(
                    lambda session: session.call(f"check-end {self._mark}", timeout=END_SECONDS)
                )

    def _run(self, jobs: Sequence[Sequence[Host]], *, seconds: float, said: str) -> list[AllReduce]:
        config = self._context.config
        payload = {
            "run": self._mark,
            "jobs": [
                horovod_args.horovodrun_argv(
                    hosts=job,
                    ranks=horovod_args.default_ranks(job),
                    interface=self._interface,
                    controller=config.run.controller,
                    mpi_args=config.run.mpi_args,
                    gloo_timeout=GLOO_SECONDS,
                )
                for job in jobs
            ],
            "seconds": round(seconds, 3),
            "size": self._size,
            "user": config.run.user or "",
        }
        names = [[host.name for host in job] for job in jobs]
        head = self._context.fleet(self._cluster).head
        with self._context.console.waiting("check", said):
            answer = head.call("check-collective", payload=payload, timeout=deadline(seconds))
        results = answer.get("results")
        if not isinstance(results, list) or len(results) != len(jobs):
            raise NodeError(
                f"node {head.node.name} measured something else than it was asked for",
                hint="hvdcloud build, then down and up again: the image has another version's node program",
            )
        return [
            all_reduce(job, result if isinstance(result, dict) else {})
            for job, result in zip(names, results, strict=True)
        ]


def _replace(context: Context, found: CheckResult, consent: Consent, *, force: bool) -> None:
    """Delete the bad nodes, and make new ones in their places; as `resize` does for nodes that are gone."""
    cluster, bad = context.cluster(), set(found.bad)
    if f"{cluster.name}-0" in bad:
        raise NodeError(
            f"the head {cluster.name}-0 is bad; it holds what the cluster knows of its runs, and is never replaced",
            hint=f"hvdcloud pull --name {cluster.name}, then hvdcloud down --name {cluster.name} and up again",
            details=reasons_of(found),
        )
    nodes = [node for node in cluster.nodes if node.name in bad]
    indices = tuple(node.index for node in nodes)
    if not force:
        refuse_if_unsaved(context, cluster, nodes, again="check --replace-bad")
    spec = spec_of(context.state, cluster, nodes=cluster.expected_nodes)
    plan = context.provider.plan_growth(spec, indices)
    consent.confirm_cost(
        plan, console=context.console, ask_above=context.config.limits.ask_above, before=cluster.dollars_per_hour
    )
    for each in found.nodes:
        if each.node in bad:
            context.console.say(f"replacing {each.node}: {'; '.join(each.reasons)}")
    change = Change(make=indices, clear=indices, remove=())
    stay = [node for node in cluster.nodes if node.name not in bad]
    with interrupted_once(), context.console.steps() as steps:
        try:
            add_nodes(context, spec, change, stay, run=None, on_progress=node_progress(steps))
        except KeyboardInterrupt:
            raise InterruptedByUserError(
                f"the check of {cluster.name} was interrupted while bad nodes were replaced; they are deleted",
                hint=f"hvdcloud resize {cluster.expected_nodes} --name {cluster.name} makes the missing ones",
            ) from None


def reasons_of(found: CheckResult) -> str:
    """A line for every reason."""
    return "\n".join(f"{each.node}: {reason}" for each in found.nodes for reason in each.reasons)
