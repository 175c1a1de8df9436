"""Nodes as VMs of Compute Engine, all of one zone."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from functools import cached_property
from typing import TYPE_CHECKING

from hvdcloud.errors import HvdcloudError
from hvdcloud.providers.base import (
    LABEL_CLUSTER,
    Cluster,
    ClusterSpec,
    Leftover,
    Listing,
    Node,
    NodeSight,
    OnProgress,
    Plan,
    Problem,
    Request,
    UnseenError,
    ignore_progress,
)
from hvdcloud.providers.gce import plan, prices, reach
from hvdcloud.providers.gce.client import ComputeClient
from hvdcloud.providers.gce.create import Creation, GcePlan
from hvdcloud.providers.gce.destroy import Sweep
from hvdcloud.providers.gce.errors import ApiError
from hvdcloud.providers.gce.plan import Settings
from hvdcloud.providers.gce.preflight import Preflight, preflight
from hvdcloud.providers.gce.ready import Boots
from hvdcloud.providers.gce.survey import VMS, Resource, Survey, look
from hvdcloud.providers.gce.view import Viewpoint, Way

if TYPE_CHECKING:
    from hvdcloud.config import GceConfig, LimitsConfig
    from hvdcloud.state import Journal

CONSOLE_BYTES = 200_000
NAMED_ZONES = 8
APPEAR_SECONDS, APPEAR_PAUSE_SECONDS = 3.0, 0.3
"""Other tools make VMs as well, and theirs are waited for in vain."""


class GceProvider:
    """VMs of one project.

    Args:
        config: which VMs, where, and who may reach them.
        limits: how long they may live.
        client: makes the API's client when it is needed first, and may raise CredentialsError or UsageError.
    """

    name = "gce"
    ready_seconds = 1800.0

    def __init__(self, config: GceConfig, limits: LimitsConfig, *, client: Callable[[], ComputeClient]) -> None:
        self._config = config
        self._limits = limits
        self._connect = client
        self._found: dict[ClusterSpec, Preflight] = {}

    # --- planning -------------------------------------------------------------------------------------------------

    def preflight(self, spec: ClusterSpec) -> Sequence[Problem]:
        """Settings that contradict each other, names that are taken, quotas, permissions."""
        problems = reach.check_iap() if self._config.ssh.source == reach.IAP else []
        if not spec.bucket.startswith("gs://"):
            problems.append(
                Problem(
                    message=f"the bucket {spec.bucket} is a folder of this machine, which VMs cannot reach",
                    hint="set checkpoints.bucket to gs://BUCKET[/PREFIX]; terraform output names yours",
                )
            )
        try:
            return [*problems, *self._look_ahead(spec).problems]
        except HvdcloudError as error:
            return [*problems, Problem(message=error.message, hint=error.hint, error=type(error))]

    def _look_ahead(self, spec: ClusterSpec) -> Preflight:
        """What is found is what the plan is made of: it asks nothing again."""
        today = datetime.now(timezone.utc).date()
        self._found[spec] = preflight(self._client, spec, self._settings, zones=self._config.zones, today=today)
        return self._found[spec]

    def plan(self, spec: ClusterSpec) -> GcePlan:
        """The firewall rules that the network lacks, and a bulkInsert for the first zone.

        Raises:
            UsageError: the settings contradict each other.  CredentialsError, NodeError: the project cannot be asked.
        """
        settings = self._settings
        problems, zones, notices, vm_image = self._found.get(spec) or self._look_ahead(spec)
        if not zones or not vm_image:
            raise problems[0].error(problems[0].message, hint=problems[0].hint)
        collection = f"/compute/v1/projects/{settings.project}"
        requests = [
            Request(object=f"firewall {body['name']}", method=f"POST {collection}/global/firewalls", body=body)
            for body in plan.firewall_bodies(spec, settings, existing=self._firewall_rules)
        ]
        requests.append(
            Request(
                object=f"{_vms(spec)} in {zones[0]}",
                method=f"POST {collection}/zones/{zones[0]}/instances/bulkInsert",
                body=plan.bulk_insert_body(spec, settings, zone=zones[0], vm_image=vm_image),
            )
        )
        seconds = plan.allowed_seconds(settings, nodes=spec.nodes)
        dollars = plan.node_dollars_per_hour(settings)
        return GcePlan(
            spec=spec,
            requests=tuple(requests),
            dollars_per_hour=spec.nodes * (dollars or 0.0),
            seconds=float(seconds),
            notices=(*notices, *_notices(settings, zones, seconds=seconds, dollars=dollars)),
            settings=settings,
            zones=tuple(zones),
            vm_image=vm_image,
        )

    def sight(self, *, bucket: str, bucket_endpoint: str | None) -> NodeSight:
        """VMs see a bucket, and another storage endpoint, under the names that the laptop uses."""
        return NodeSight(bucket=bucket, bucket_endpoint=bucket_endpoint)

    # --- creating -------------------------------------------------------------------------------------------------

    def create(self, plan: Plan, *, journal: Journal, on_progress: OnProgress = ignore_progress) -> Sequence[Node]:
        """All VMs in the first zone that has room for them, or none."""
        assert isinstance(plan, GcePlan)
        instances = Creation(self._client, plan, journal=journal, on_progress=on_progress).run()
        return sorted(map(self._viewpoint.node, instances), key=lambda node: node.index)

    def wait_ready(
        self, nodes: Sequence[Node], *, deadline: float, on_progress: OnProgress = ignore_progress
    ) -> Sequence[Node]:
        """Follow every VM's guest attributes until its container says that sshd answers."""
        cluster = nodes[0].name.rpartition("-")[0]
        boots = Boots(self._client, self._viewpoint, nodes, cluster=cluster, deadline=deadline, on_progress=on_progress)
        with _explained(f"follow how the VMs of {cluster} come up"):
            return boots.wait()

    # --- looking --------------------------------------------------------------------------------------------------

    def cluster(self, name: str) -> Cluster | None:
        """From the labels of VMs and disks, the descriptions of firewall rules, and the operations under way."""
        survey = self._look(name)
        if survey.instances or survey.disks or survey.firewalls or survey.creating(name):
            return self._viewpoint.cluster(name, survey)
        if survey.unseen:
            raise UnseenError(
                f"nothing of {name} was found, but {', '.join(survey.unseen)} did not answer",
                hint="run the command again, or look by hand: gcloud compute instances list "
                f"--project {self._client.project} --filter=labels.{LABEL_CLUSTER}={name}",
            )
        return None

    def list(self) -> Listing:
        """Every cluster of this project.

        VMs that somebody has just asked for are waited for until they can be seen: before, nothing tells their name.
        """
        deadline = time.monotonic() + APPEAR_SECONDS
        while True:
            survey = self._look(None)
            clusters = self._viewpoint.clusters(survey)
            if not survey.nameless(cluster.name for cluster in clusters) or time.monotonic() > deadline:
                return Listing(clusters=tuple(clusters), unseen=survey.unseen)
            time.sleep(APPEAR_PAUSE_SECONDS)

    def _look(self, name: str | None) -> Survey:
        survey = look(self._client, name)
        with _explained(f"look for {name or 'clusters'} in project {self._client.project}"):
            if VMS in survey.failures:
                raise survey.failures[VMS]
        # Whoever may not see disks can still delete VMs.
        return survey.with_failures_unseen()

    def console(self, node: Node) -> str:
        """The end of what the VM wrote to its serial port."""
        zone, _, name = node.id.partition("/")
        with _explained(f"read the boot log of {name}"):
            return self._client.serial_output(zone, name, start=-CONSOLE_BYTES)

    # --- deleting -------------------------------------------------------------------------------------------------

    def destroy(self, name: str, *, on_progress: OnProgress = ignore_progress) -> Sequence[Leftover]:
        """VMs and firewall rules at once, then disks that stayed; looked for again until nothing is found."""
        return Sweep(self._client, name, on_progress=on_progress).run()

    # --- what all of them need ------------------------------------------------------------------------------------

    @cached_property
    def _client(self) -> ComputeClient:
        return self._connect()

    @cached_property
    def _settings(self) -> Settings:
        gpu = self._config.gpu
        return Settings(
            project=self._client.project,
            machine_type=self._config.machine_type,
            gpu_type=gpu.type if gpu else None,
            gpu_count=gpu.count if gpu else 0,
            spot=self._config.spot,
            disk_gb=self._config.disk_gb,
            vm_image_profile=self._config.vm_image,
            network=self._config.network,
            subnetwork=self._config.subnetwork,
            service_account=self._config.service_account,
            ssh_source=reach.caller_source(self._config.ssh.source),
            max_run_seconds=int(self._limits.max_run_duration),
            max_cost=self._limits.max_cost,
        )

    @cached_property
    def _firewall_rules(self) -> Sequence[Resource]:
        """Those of the project before anything is made."""
        with _explained(f"read the firewall rules of {self._client.project}"):
            return self._client.firewalls()

    @cached_property
    def _viewpoint(self) -> Viewpoint:
        source = self._config.ssh.source
        if source == reach.IAP:
            way = Way.IAP
        elif source == reach.AUTO or plan.is_public(source):
            way = Way.EXTERNAL
        else:
            way = Way.INTERNAL
        return Viewpoint(project=self._client.project, way=way)


def _vms(spec: ClusterSpec) -> str:
    if spec.nodes == 1:
        return f"1 VM {spec.node_name(0)}"
    return f"{spec.nodes} VMs {spec.node_name(0)} … {spec.node_name(spec.nodes - 1)}"


def _notices(settings: Settings, zones: Sequence[str], *, seconds: int, dollars: float | None) -> Iterator[str]:
    if len(zones) > 1:
        more = f" and {len(zones) - NAMED_ZONES} more" if len(zones) > NAMED_ZONES else ""
        yield f"zones tried in this order: {', '.join(zones[:NAMED_ZONES])}{more}"
    if seconds < settings.max_run_seconds:
        yield (
            f"limits.max_cost of ${settings.max_cost:.2f} shortens limits.max_run_duration from "
            f"{timedelta(seconds=settings.max_run_seconds)} to {timedelta(seconds=seconds)}"
        )
    if dollars is None:
        yield f"the price table does not know {settings.machine_type} with {settings.gpu_type}"
    else:
        yield f"prices are estimates, as of {prices.as_of()} for {prices.region()}"


@contextlib.contextmanager
def _explained(doing: str) -> Iterator[None]:
    """The API's errors as ours."""
    try:
        yield
    except ApiError as error:
        raise error.as_user_error(doing=doing) from error
