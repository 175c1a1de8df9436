"""What Compute Engine is asked for to make a cluster. Pure: settings and spec → request bodies, as they are sent.

Bodies have the JSON form of the API's discovery document (compute.v1): camelCase keys, int64 as text.
"""

from __future__ import annotations

import hashlib
import ipaddress
import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hvdcloud.errors import UsageError
from hvdcloud.image.registry import google_registry
from hvdcloud.providers.base import SSH_PORT, ClusterSpec
from hvdcloud.providers.gce import catalog, prices, startup
from hvdcloud.providers.gce.reach import IAP, IAP_RANGE

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is the same for every cluster of one configuration."""

    project: str
    machine_type: str
    gpu_type: str | None
    gpu_count: int
    spot: bool
    disk_gb: int
    vm_image_profile: Literal["cos", "dlvm"]
    network: str | None
    """Name or URL; None: the subnetwork's, else `default`."""
    subnetwork: str | None
    """Name or URL; a name is looked for in the zone's region."""
    service_account: str | None
    """E-mail address; None: the project's default."""
    ssh_source: str
    """`iap`, or one range of IPv4 addresses: `198.51.100.7/32`."""
    max_run_seconds: int
    max_cost: float | None
    """Dollars for all nodes together, over their whole life."""
    idle_seconds: float | None = None
    """Without a run and without an SSH session, after which the nodes end themselves; None: never."""
    endpoint: str | None = None
    """Another Compute API endpoint than Google's, for the nodes."""


def bulk_insert_body(spec: ClusterSpec, settings: Settings, *, zone: str, vm_image: str) -> dict[str, Any]:
    """A `BulkInsertInstanceResource` for `instances.bulkInsert` in `zone`: all nodes or none.

    Args:
        zone: such as `us-central1-a`.
        vm_image: the boot disk's image, `projects/P/global/images/NAME`; a family could change between two zones.

    Raises:
        UsageError: as `allowed_seconds`; or the machine type is unknown.
    """
    return {
        "count": str(spec.nodes),
        # Fewer than that: Compute Engine deletes those it made and reports failure.
        "minCount": str(spec.nodes),
        "perInstanceProperties": {spec.node_name(index): {} for index in range(spec.nodes)},
        "instanceProperties": _instance_properties(spec, settings, zone=zone, vm_image=vm_image),
    }


def _instance_properties(spec: ClusterSpec, settings: Settings, *, zone: str, vm_image: str) -> dict[str, Any]:
    machine = catalog.machine(settings.machine_type)
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
        "scheduling": _scheduling(spec, settings, zone=zone),
        # Scopes are wide because IAM is what limits the account; Artifact Registry needs more than the storage scopes.
        "serviceAccounts": [
            {
                "email": settings.service_account or "default",
                "scopes": ["https://www.googleapis.com/auth/cloud-platform"],
            }
        ],
        "labels": spec.labels,
        "tags": {"items": [NETWORK_TAG, cluster_tag(spec)]},
        "metadata": {"items": [{"key": key, "value": value} for key, value in _metadata(spec, settings).items()]},
        "shieldedInstanceConfig": {
            # COS gets Google's signatures for the driver's modules (https://cos.googlesource.com/cos/tools/+/a19a377b
            # shows the download); nothing says so of the driver in Deep Learning VM images.
            "enableSecureBoot": settings.vm_image_profile == "cos",
            "enableVtpm": True,
            "enableIntegrityMonitoring": True,
        },
    }
    if machine.takes_gpus and settings.gpu_type and settings.gpu_count:
        properties["guestAccelerators"] = [
            {"acceleratorType": settings.gpu_type, "acceleratorCount": settings.gpu_count}
        ]
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


def _scheduling(spec: ClusterSpec, settings: Settings, *, zone: str) -> dict[str, Any]:
    return {
        "provisioningModel": "SPOT" if settings.spot else "STANDARD",
        # Serves both preemption and the time limit. Stopped VMs would go on billing their disks.
        "instanceTerminationAction": "DELETE",
        # VMs with GPUs cannot migrate, Spot VMs may not.
        "onHostMaintenance": "TERMINATE",
        # Refused with Spot. And a node that came back empty would not be the node that the run has lost.
        "automaticRestart": False,
        "maxRunDuration": {"seconds": str(allowed_seconds(settings, nodes=spec.nodes, zone=zone))},
    }


def _metadata(spec: ClusterSpec, settings: Settings) -> dict[str, str]:
    _, gpu_count = catalog.gpus_of(settings.machine_type, settings.gpu_type, settings.gpu_count)
    items = {
        "startup-script": startup.render(
            profile=settings.vm_image_profile,
            image=spec.image,
            registry_login=google_registry(spec.image.partition("/")[0]),
            gpu=gpu_count > 0,
            driver=DRIVER,
        ),
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


def firewall_bodies(
    spec: ClusterSpec, settings: Settings, *, existing: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """`Firewall` bodies that the cluster needs beside the `existing` rules of the project.

    One lets the laptop (or IAP) reach the containers' sshd, one lets the nodes reach each other: Horovod, Open MPI and
    NCCL pick ports at random. None where rules on the tag `hvdcloud`, such as Terraform's, do so already.
    """
    network = network_path(settings)
    tag = cluster_tag(spec)
    common = {
        # Firewall rules have no labels: whoever cleans up reads the owner from here.
        "description": " ".join(f"{key}={value}" for key, value in spec.labels.items()),
        "network": network,
        "direction": "INGRESS",
        "targetTags": [tag],
    }
    rules = [rule for rule in existing if _applies(rule, network=network, tag=tag)]
    source = IAP_RANGE if settings.ssh_source == IAP else settings.ssh_source
    bodies = []
    if not any(_lets_ssh_in(rule, ipaddress.IPv4Network(source, strict=False)) for rule in rules):
        allowed = [{"IPProtocol": "tcp", "ports": [str(SSH_PORT)]}]
        bodies.append({"name": f"{tag}-ssh", **common, "sourceRanges": [source], "allowed": allowed})
    if not any(_lets_nodes_talk(rule, tag) for rule in rules):
        bodies.append({"name": f"{tag}-mesh", **common, "sourceTags": [tag], "allowed": [{"IPProtocol": "all"}]})
    return bodies


def _applies(rule: Mapping[str, Any], *, network: str, tag: str) -> bool:
    targets = rule.get("targetTags", [])
    return (
        rule.get("direction", "INGRESS") == "INGRESS"
        and not rule.get("disabled", False)
        and _same_path(str(rule.get("network", "")), network)
        and (not targets or NETWORK_TAG in targets or tag in targets)
        and not rule.get("targetServiceAccounts")
    )


def _lets_ssh_in(rule: Mapping[str, Any], source: ipaddress.IPv4Network) -> bool:
    ranges = [ipaddress.ip_network(each, strict=False) for each in rule.get("sourceRanges", [])]
    from_there = any(isinstance(each, ipaddress.IPv4Network) and source.subnet_of(each) for each in ranges)
    return from_there and any(_allows_tcp(allowed, ports=(SSH_PORT, SSH_PORT)) for allowed in rule.get("allowed", []))


def _lets_nodes_talk(rule: Mapping[str, Any], tag: str) -> bool:
    sources = rule.get("sourceTags", [])
    among_nodes = NETWORK_TAG in sources or tag in sources
    return among_nodes and any(_allows_tcp(allowed, ports=(1, 65535)) for allowed in rule.get("allowed", []))


def _allows_tcp(allowed: Mapping[str, Any], *, ports: tuple[int, int]) -> bool:
    if str(allowed.get("IPProtocol")).lower() not in {"tcp", "all", "6"}:
        return False
    spans = [str(each).partition("-") for each in allowed.get("ports", [])]
    return not spans or any(int(low) <= ports[0] and ports[1] <= int(high or low) for low, _, high in spans)


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


def node_dollars_per_hour(settings: Settings, *, zone: str | None = None) -> float | None:
    """The estimate for one node with its disk and address, in a zone or in the price table's own region.

    Returns:
        None if the table lacks a part of it.
    """
    return prices.node_dollars_per_hour(
        machine_type=settings.machine_type,
        gpu_type=settings.gpu_type,
        gpu_count=settings.gpu_count,
        spot=settings.spot,
        disk_gb=settings.disk_gb,
        external_ip=external_ip_needed(settings),
        region=region_of(zone) if zone else None,
    )


def allowed_seconds(settings: Settings, *, nodes: int, zone: str | None = None) -> int:
    """How long the nodes may live: `limits.max_run_duration`, or less where `limits.max_cost` buys less.

    By the prices of a zone, or of the price table's own region.

    Raises:
        UsageError: outside of what Compute Engine takes; the money buys less than that; or the price is not known.
    """
    if not MIN_RUN_SECONDS <= settings.max_run_seconds <= MAX_RUN_SECONDS:
        raise UsageError(
            f"limits.max_run_duration of {settings.max_run_seconds} s: Compute Engine takes 30 s to 120 days",
            hint="write limits.max_run_duration: 12h",
        )
    if settings.max_cost is None:
        return settings.max_run_seconds
    dollars = node_dollars_per_hour(settings, zone=zone)
    if dollars is None:
        raise UsageError(
            f"the price of {settings.machine_type} is not in the price table, so limits.max_cost cannot be kept",
            hint="take limits.max_cost out and set limits.max_run_duration",
        )
    bought = math.floor(settings.max_cost / (dollars * nodes) * 3600) - START_SECONDS - LATE_SECONDS
    if bought < MIN_RUN_SECONDS:
        where = f" in {zone}" if zone else ""
        raise UsageError(
            f"limits.max_cost of ${settings.max_cost:.2f} is less than two minutes of {nodes} node(s) at "
            f"${dollars:.2f}/h each{where}",
            hint="raise limits.max_cost, or take fewer or smaller nodes",
        )
    return min(settings.max_run_seconds, bought)


def worst_case_dollars(settings: Settings, *, nodes: int, zone: str) -> float:
    """What the nodes cost if nothing but their time limit ends them, in a zone; 0 if the price is not known.

    From their creation, so more than the one minute that is billed at least, until Compute Engine has been as late as
    it may be.

    Raises:
        UsageError: as `allowed_seconds`.
    """
    seconds = START_SECONDS + allowed_seconds(settings, nodes=nodes, zone=zone) + LATE_SECONDS
    return nodes * (node_dollars_per_hour(settings, zone=zone) or 0.0) * seconds / 3600


def zone_candidates(settings: Settings, *, zones: Sequence[str]) -> list[str]:
    """Where to try, in order: the configured `zones`, else the catalogue's for the node's GPU, cheapest first.

    A subnetwork's URL pins the region. An empty list: the catalogue does not know, the API has to be asked.
    """
    gpu_type, _ = catalog.gpus_of(settings.machine_type, settings.gpu_type, settings.gpu_count)
    candidates = list(zones) or prices.by_price(
        catalog.zones_with(gpu_type),
        machine_type=settings.machine_type,
        gpu_type=settings.gpu_type,
        gpu_count=settings.gpu_count,
        spot=settings.spot,
    )
    region = subnetwork_region(settings)
    return [zone for zone in candidates if region in (None, region_of(zone))]


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


def _same_path(one: str, other: str) -> bool:
    return _path(one, "") == _path(other, "")


def subnetwork_region(settings: Settings) -> str | None:
    """The region that `gce.subnetwork`, given as a URL, pins the nodes to; None: any."""
    _, found, rest = (settings.subnetwork or "").partition("regions/")
    return rest.partition("/")[0] if found else None


def _name_digest(cluster: str) -> str:
    return hashlib.sha256(f"hvdcloud:{cluster}".encode()).hexdigest()[:12]
