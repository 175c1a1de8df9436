"""What Compute Engine is asked for to make a cluster. Pure: settings and spec → request bodies, as they are sent.

Bodies have the JSON form of the API's discovery document (compute.v1): camelCase keys, int64 as text.
"""

from __future__ import annotations

import hashlib
import ipaddress
import math
import uuid
from collections.abc import Sequence
from typing import Any

from hvdcloud.cluster.model import ClusterSpec
from hvdcloud.errors import UsageError
from hvdcloud.image.publish.registry import google_registry
from hvdcloud.providers.gce.money import catalog, prices
from hvdcloud.providers.gce.plan import startup
from hvdcloud.providers.gce.settings import Group, NodeKind, Settings, groups
from hvdcloud.providers.gce.ssh_access import IAP

METADATA_IMAGE = "hvdcloud-image"
METADATA_BUCKET = "hvdcloud-bucket"
METADATA_AUTHORIZED_KEY = "hvdcloud-authorized-key"
METADATA_IDLE = "hvdcloud-idle"
"""Seconds without a run and without an SSH session after which the nodes end themselves; absent: never."""
METADATA_COMPUTE_ENDPOINT = "hvdcloud-compute-endpoint"
"""Where nodes ask for their own deletion; absent: Google's."""

NETWORK_TAG = "hvdcloud"
"""On every VM; Terraform's firewall rules name it."""
DRIVER = "R580"
"""The last driver branch for Volta and Pascal, which newer GPUs take as well: NVIDIA's data center driver notes."""

DISK_TYPE = "pd-balanced"
"""Of the boot disk: the default, pd-standard, is slow to unpack an image of many GB."""

# https://cloud.google.com/compute/docs/instances/limit-vm-runtime: 30 s to 120 days, up to 30 s late.
MIN_RUN_SECONDS = 30
MAX_RUN_SECONDS = 120 * 86400
LATE_SECONDS = 30
START_SECONDS = 60
"""Allowed for, from a VM's creation until it runs: only then its time limit begins to count."""

# Not `is_private`, which counts documentation's ranges and others that no network uses.
_PRIVATE = tuple(
    ipaddress.IPv4Network(each)
    for each in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "127.0.0.0/8")
)


def bulk_insert_bodies(
    spec: ClusterSpec,
    settings: Settings,
    *,
    zone: str,
    vm_image: str,
    indices: Sequence[int] | None = None,
    run_seconds: int | None = None,
) -> list[dict[str, Any]]:
    """`BulkInsertInstanceResource` bodies, each for all of its nodes or none, to be sent to `zone` one after the other.

    One for each kind of node: a request has one machine type and one scheduling for all of its VMs.

    Args:
        zone: such as `us-central1-a`.
        vm_image: the boot disk's image, `projects/P/global/images/NAME`; a family could change between two zones.
        indices: of the nodes to make; None: all of `spec`.
        run_seconds: after which Compute Engine deletes them; None: what `allowed_seconds` says for all of `spec`.

    Raises:
        UsageError: as `allowed_seconds`; or the machine type is unknown.
    """
    if run_seconds is None:
        run_seconds = allowed_seconds(settings, nodes=spec.nodes, zone=zone)
    _check_run_seconds(run_seconds, "a time limit")
    wanted = range(spec.nodes) if indices is None else indices
    return [
        {
            "count": str(group.nodes),
            # Fewer than that: Compute Engine deletes those it made and reports failure.
            "minCount": str(group.nodes),
            "perInstanceProperties": {spec.node_name(index): {} for index in group.indices},
            "instanceProperties": _instance_properties(
                spec, settings, group.kind, zone=zone, vm_image=vm_image, run_seconds=run_seconds
            ),
        }
        for group in groups(settings, wanted)
    ]


def _instance_properties(
    spec: ClusterSpec, settings: Settings, kind: NodeKind, *, zone: str, vm_image: str, run_seconds: int
) -> dict[str, Any]:
    machine = catalog.machine(kind.machine_type)
    properties: dict[str, Any] = {
        # Here machine, accelerator and disk types are bare names, not URLs as in `instances.insert`.
        "machineType": machine.name,
        "disks": [
            {
                "boot": True,
                "autoDelete": True,
                "initializeParams": {
                    "sourceImage": vm_image,
                    "diskSizeGb": str(settings.disk_gb),
                    "diskType": DISK_TYPE,
                    # A disk does not inherit the VM's labels.
                    "labels": spec.labels,
                },
            }
        ],
        "networkInterfaces": [_network_interface(settings, zone=zone)],
        "scheduling": _scheduling(kind, run_seconds=run_seconds),
        # Scopes are wide because IAM is what limits the account; Artifact Registry needs more than the storage scopes.
        "serviceAccounts": [
            {
                "email": settings.service_account or "default",
                "scopes": ["https://www.googleapis.com/auth/cloud-platform"],
            }
        ],
        "labels": spec.labels,
        "tags": {"items": [NETWORK_TAG, cluster_tag(spec)]},
        "metadata": {"items": [{"key": key, "value": value} for key, value in _metadata(spec, settings, kind).items()]},
        "shieldedInstanceConfig": {
            # COS gets Google's signatures for the driver's modules (https://cos.googlesource.com/cos/tools/+/a19a377b
            # shows the download); nothing says so of the driver in Deep Learning VM images.
            "enableSecureBoot": settings.vm_image_profile == "cos",
            "enableVtpm": True,
            "enableIntegrityMonitoring": True,
        },
    }
    if machine.takes_gpus and kind.gpu_type and kind.gpu_count:
        properties["guestAccelerators"] = [{"acceleratorType": kind.gpu_type, "acceleratorCount": kind.gpu_count}]
    return properties


def _network_interface(settings: Settings, *, zone: str) -> dict[str, Any]:
    # gVNIC needs an image with the guest OS feature GVNIC, which COS and Deep Learning VM have:
    # https://cloud.google.com/compute/docs/networking/using-gvnic
    interface: dict[str, Any] = {"nicType": "GVNIC"}
    if settings.network or not settings.subnetwork:
        interface["network"] = network_path(settings)
    if settings.subnetwork:
        interface["subnetwork"] = _path(
            settings.subnetwork, f"projects/{settings.project}/regions/{region_of(zone)}/subnetworks"
        )
    if external_ip_needed(settings):
        interface["accessConfigs"] = [{"name": "External NAT", "type": "ONE_TO_ONE_NAT"}]
    return interface


def _scheduling(kind: NodeKind, *, run_seconds: int) -> dict[str, Any]:
    return {
        "provisioningModel": "SPOT" if kind.spot else "STANDARD",
        # Serves both preemption and the time limit. Stopped VMs would go on billing their disks.
        "instanceTerminationAction": "DELETE",
        # VMs with GPUs cannot migrate, Spot VMs may not.
        "onHostMaintenance": "TERMINATE",
        # Refused with Spot. And a node that came back empty would not be the node that the run has lost.
        "automaticRestart": False,
        "maxRunDuration": {"seconds": str(run_seconds)},
    }


def _metadata(spec: ClusterSpec, settings: Settings, kind: NodeKind) -> dict[str, str]:
    _, gpu_count = catalog.gpus_of(kind.machine_type, kind.gpu_type, kind.gpu_count)
    items = {
        "startup-script": startup.render(
            profile=settings.vm_image_profile,
            image=spec.image,
            registry_login=google_registry(spec.image.partition("/")[0]),
            gpu=gpu_count > 0,
            driver=DRIVER,
        ),
        "shutdown-script": startup.render_shutdown(),
        "enable-guest-attributes": "TRUE",
        # Nobody but the holder of the cluster's own key gets in; OS Login would add the project's people.
        "block-project-ssh-keys": "TRUE",
        "enable-oslogin": "FALSE",
        # Without this the boot log is lost with the VM.
        "serial-port-logging-enable": "TRUE",
        METADATA_IMAGE: spec.image,
        METADATA_BUCKET: spec.bucket,
        METADATA_AUTHORIZED_KEY: spec.authorized_key,
    }
    if settings.idle_seconds is not None:
        items[METADATA_IDLE] = f"{settings.idle_seconds:g}"
    if settings.endpoint:
        items[METADATA_COMPUTE_ENDPOINT] = settings.endpoint
    return items


def external_ip_needed(settings: Settings) -> bool:
    """The laptop comes over the internet, or the VM installs packages from there (Deep Learning VM)."""
    return settings.vm_image_profile == "dlvm" or (settings.ssh_source != IAP and is_public(settings.ssh_source))


def is_public(source: str) -> bool:
    """Whether a range of addresses lies outside of private networks and VPNs.

    Raises:
        ValueError: it is no range of IPv4 addresses.
    """
    network = ipaddress.IPv4Network(source, strict=False)
    return not any(network.subnet_of(private) for private in _PRIVATE)


def node_dollars_per_hour(settings: Settings, kind: NodeKind, *, zone: str | None = None) -> float | None:
    """The estimate for one node with its disk and address, in a zone or in the price table's own region.

    Returns:
        None if the table lacks a part of it.
    """
    return prices.node_dollars_per_hour(
        machine_type=kind.machine_type,
        gpu_type=kind.gpu_type,
        gpu_count=kind.gpu_count,
        spot=kind.spot,
        disk_gb=settings.disk_gb,
        external_ip=external_ip_needed(settings),
        region=region_of(zone) if zone else None,
    )


def dollars_per_hour(settings: Settings, *, nodes: int, zone: str | None = None) -> float | None:
    """As `node_dollars_per_hour`, for all nodes of a cluster together."""
    found = [
        (group.nodes, node_dollars_per_hour(settings, group.kind, zone=zone))
        for group in groups(settings, range(nodes))
    ]
    known = [count * dollars for count, dollars in found if dollars is not None]
    return sum(known) if len(known) == len(found) else None


def unpriced(settings: Settings, *, nodes: int, zone: str | None = None) -> str:
    """The kinds of node that the price table does not know, in words; empty: it knows all of them."""
    kinds = [group.kind for group in groups(settings, range(nodes))]
    return " and ".join(str(kind) for kind in kinds if node_dollars_per_hour(settings, kind, zone=zone) is None)


def allowed_seconds(settings: Settings, *, nodes: int, zone: str | None = None) -> int:
    """How long the nodes may live: `limits.max_run_duration`, or less where `limits.max_cost` buys less.

    By the prices of a zone, or of the price table's own region.

    Raises:
        UsageError: outside of what Compute Engine takes; the money buys less than that; or the price is not known.
    """
    _check_run_seconds(settings.max_run_seconds, "limits.max_run_duration")
    if settings.max_cost is None:
        return settings.max_run_seconds
    dollars = dollars_per_hour(settings, nodes=nodes, zone=zone)
    if dollars is None:
        raise UsageError(
            f"the price of {unpriced(settings, nodes=nodes, zone=zone)} is not in the price table, so limits.max_cost "
            "cannot be kept",
            hint="take limits.max_cost out and set limits.max_run_duration",
        )
    bought = math.floor(settings.max_cost / dollars * 3600) - START_SECONDS - LATE_SECONDS
    if bought < MIN_RUN_SECONDS:
        where = f" in {zone}" if zone else ""
        raise UsageError(
            f"limits.max_cost of ${settings.max_cost:.2f} is less than two minutes of {nodes} node(s) at "
            f"${dollars:.2f}/h in all{where}",
            hint="raise limits.max_cost, or take fewer or smaller nodes",
        )
    return min(settings.max_run_seconds, bought)


def _check_run_seconds(seconds: int, what: str) -> None:
    if not MIN_RUN_SECONDS <= seconds <= MAX_RUN_SECONDS:
        raise UsageError(
            f"{what} of {seconds} s: Compute Engine takes 30 s to 120 days",
            hint="write limits.max_run_duration: 12h",
        )


def worst_case_dollars(settings: Settings, *, nodes: int, zone: str) -> float:
    """What the nodes cost if nothing but their time limit ends them, in a zone; 0 if the price is not known.

    From their creation, so more than the one minute that is billed at least, until Compute Engine has been as late as
    it may be.

    Raises:
        UsageError: as `allowed_seconds`.
    """
    seconds = START_SECONDS + allowed_seconds(settings, nodes=nodes, zone=zone) + LATE_SECONDS
    return (dollars_per_hour(settings, nodes=nodes, zone=zone) or 0.0) * seconds / 3600


def zone_candidates(settings: Settings, *, nodes: int, zones: Sequence[str]) -> list[str]:
    """Where to try, in order: the configured `zones`, else the catalogue's for the nodes' GPUs, cheapest first.

    A subnetwork's URL pins the region. An empty list: the catalogue does not know, the API has to be asked.
    """
    kinds = groups(settings, range(nodes))

    def machines(region: str) -> float | None:
        found = [
            prices.node_dollars_per_hour(
                machine_type=group.kind.machine_type,
                gpu_type=group.kind.gpu_type,
                gpu_count=group.kind.gpu_count,
                spot=group.kind.spot,
                disk_gb=0,
                external_ip=False,
                region=region,
            )
            for group in kinds
        ]
        known = [group.nodes * dollars for group, dollars in zip(kinds, found, strict=True) if dollars is not None]
        return sum(known) if len(known) == len(kinds) else None

    candidates = list(zones) or prices.by_price(_zones_with(kinds), price=machines)
    region = subnetwork_region(settings)
    return [zone for zone in candidates if region in (None, region_of(zone))]


def _zones_with(kinds: Sequence[Group]) -> list[str]:
    """Those of the catalogue that have the GPUs of every kind; of a machine type without one it says nothing."""
    gpus = {catalog.gpus_of(each.kind.machine_type, each.kind.gpu_type, each.kind.gpu_count)[0] for each in kinds}
    first, *others = [catalog.zones_with(gpu) for gpu in gpus if gpu] or [catalog.zones_with(None)]
    return [zone for zone in first if all(zone in other for other in others)]


def request_id(cluster: str, cluster_id: str = "") -> str:
    """A new request id that shows, in operations still in flight, for which cluster it was made.

    A UUID of version 4 in form, as the API wants it, whose first 48 bits are a digest of the name; 12 random bits and
    the cluster's id follow, where one is given, and 36 more random bits.
    """
    random = uuid.uuid4().hex
    return str(uuid.UUID(hex=_name_digest(cluster) + random[12:20] + (cluster_id or random[20:26]) + random[26:]))


def cluster_id_of(request_id: str) -> str:
    """The id of the cluster for which `request_id` says it was made."""
    return request_id.replace("-", "")[20:26]


def belongs_to(request_id: str, cluster: str) -> bool:
    """Whether `request_id` (an operation's clientOperationId) was made for a cluster of this name."""
    return request_id.replace("-", "").lower().startswith(_name_digest(cluster))


def cluster_tag(spec: ClusterSpec) -> str:
    """The network tag of this cluster's VMs alone, and how its firewall rules' names begin."""
    return f"hvdcloud-{spec.name}-{spec.id}"


def region_of(zone: str) -> str:
    """`us-central1` of `us-central1-a`."""
    return zone.rpartition("-")[0]


def network_path(settings: Settings) -> str:
    """The VPC network in the form that `Firewall.network` takes: `projects/P/global/networks/NAME`."""
    return _path(settings.network or "default", f"projects/{settings.project}/global/networks")


def _path(name: str, collection: str) -> str:
    """`projects/…` of a bare name, or of a URL as Terraform's `self_link` has it."""
    if "/" not in name:
        return f"{collection}/{name}"
    return name[name.index("projects/") :] if "projects/" in name else name


def same_path(one: str, other: str) -> bool:
    """Whether two names or URLs mean one object."""
    return _path(one, "") == _path(other, "")


def subnetwork_region(settings: Settings) -> str | None:
    """The region that `gce.subnetwork`, given as a URL, pins the nodes to; None: any."""
    _, found, rest = (settings.subnetwork or "").partition("regions/")
    return rest.partition("/")[0] if found else None


def _name_digest(cluster: str) -> str:
    return hashlib.sha256(f"hvdcloud:{cluster}".encode()).hexdigest()[:12]
