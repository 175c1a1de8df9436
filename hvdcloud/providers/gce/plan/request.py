"""What Compute Engine is asked for to make a cluster. Pure: settings and spec → request bodies, as they are sent.

Bodies have the JSON form of the API's discovery document (compute.v1): camelCase keys, int64 as text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hvdcloud.cluster.model import SSH_PORT, ClusterSpec
from hvdcloud.google.credentials import SCOPE
from hvdcloud.google.registry_hosts import google_registry
from hvdcloud.providers.gce.money import catalog
from hvdcloud.providers.gce.money.catalog import NodeKind
from hvdcloud.providers.gce.names import region_of
from hvdcloud.providers.gce.plan import startup
from hvdcloud.providers.gce.plan.budget import allowed_seconds
from hvdcloud.providers.gce.settings import DEFAULT_ACCOUNT, Group, Settings, groups
from hvdcloud.providers.gce.ssh_access import IAP, IAP_RANGE
from hvdcloud.runs.spec import DataRequest, DataSet

METADATA_IMAGE = "hvdcloud-image"
METADATA_BUCKET = "hvdcloud-bucket"
METADATA_AUTHORIZED_KEY = "hvdcloud-authorized-key"
METADATA_IDLE = "hvdcloud-idle"
"""Seconds without a run and without an SSH session after which the nodes end themselves; absent: never."""
METADATA_DATA = "hvdcloud-data-sets"
"""What a node fetches as soon as its container runs, as node/data reads it; the startup script puts its index in."""
METADATA_STORAGE_ENDPOINT = "hvdcloud-storage-endpoint"
"""Where the bucket is; absent: at Google."""
METADATA_COMPUTE_ENDPOINT = "hvdcloud-compute-endpoint"
"""Where nodes ask for their own deletion; absent: Google's."""

NETWORK_TAG = "hvdcloud"
"""On every VM; Terraform's firewall rules name it."""

_MODELS = {"spot": "SPOT", "flex-start": "FLEX_START"}
"""gce.provisioning → what `scheduling.provisioningModel` calls it; others: STANDARD."""
_SCOPES = "https://www.googleapis.com/auth"


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
        run_seconds = allowed_seconds(settings, range(spec.nodes), zone=zone)
    wanted = range(spec.nodes) if indices is None else indices
    return [
        {
            "count": str(group.nodes),
            # Fewer than that: Compute Engine deletes those it made and reports failure.
            "minCount": str(group.nodes),
            "perInstanceProperties": {spec.node_name(index): {} for index in group.indices},
            "instanceProperties": _instance_properties(
                spec, settings, group, zone=zone, vm_image=vm_image, run_seconds=run_seconds
            ),
        }
        for group in groups(settings, wanted)
    ]


def flex_start_bodies(
    spec: ClusterSpec, settings: Settings, *, zone: str, vm_image: str
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """`InstanceTemplate`, `InstanceGroupManager` and `InstanceGroupManagerResizeRequest`, to be sent in this order.

    All have the name `cluster_tag`. A resize request makes all its VMs at once, as soon as there is room for them:
    https://docs.cloud.google.com/compute/docs/instance-groups/create-resize-requests-mig

    Arguments and errors are those of `bulk_insert_bodies`.
    """
    name, seconds = cluster_tag(spec), allowed_seconds(settings, range(spec.nodes), zone=zone)
    [alike] = groups(settings, range(spec.nodes))
    properties = _instance_properties(spec, settings, alike, zone=zone, vm_image=vm_image, run_seconds=seconds)
    # None of them has labels of its own.
    common = {"name": name, "description": _description(spec)}
    return (
        {**common, "properties": properties},
        {
            **common,
            "instanceTemplate": f"projects/{settings.project}/global/instanceTemplates/{name}",
            "targetSize": 0,
            # The default is to make a VM again that has ended.
            "instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING"},
        },
        {
            **common,
            "instances": [{"name": spec.node_name(index)} for index in alike.indices],
            "requestedRunDuration": {"seconds": str(seconds)},
        },
    )


def _instance_properties(
    spec: ClusterSpec, settings: Settings, group: Group, *, zone: str, vm_image: str, run_seconds: int
) -> dict[str, Any]:
    kind = group.kind
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
                    "diskType": machine.disk_type,
                    # A disk does not inherit the VM's labels.
                    "labels": spec.labels,
                },
            },
        ],
        "networkInterfaces": [_network_interface(settings, zone=zone)],
        "scheduling": _scheduling(kind, run_seconds=run_seconds, bound=settings.reservation_bound),
        "reservationAffinity": _reservation_affinity(settings),
        "serviceAccounts": [_account(settings)],
        "labels": spec.labels,
        "tags": {"items": [NETWORK_TAG, cluster_tag(spec)]},
        "metadata": {
            "items": [{"key": key, "value": value} for key, value in _metadata(spec, settings, group).items()]
        },
        "shieldedInstanceConfig": {
            # COS gets Google's signatures for the driver's modules (https://cos.googlesource.com/cos/tools/+/a19a377b
            # shows the download).
            "enableSecureBoot": True,
            "enableVtpm": True,
            "enableIntegrityMonitoring": True,
        },
    }
    if placement_body(spec, settings):
        # Here a name, as of the machine type: of the zone's region.
        properties["resourcePolicies"] = [cluster_tag(spec)]
    if machine.takes_gpus and kind.gpu_type and kind.gpu_count:
        properties["guestAccelerators"] = [{"acceleratorType": kind.gpu_type, "acceleratorCount": kind.gpu_count}]
    return properties


def _account(settings: Settings) -> dict[str, Any]:
    """Who a node is, and what its tokens are good for, whatever IAM allows that account.

    Images are pulled with a storage scope: https://cloud.google.com/artifact-registry/docs/integrate-compute
    """
    account = settings.service_account or DEFAULT_ACCOUNT
    # The default account may do nearly everything in many projects.
    narrow = [f"{_SCOPES}/devstorage.read_write", f"{_SCOPES}/logging.write"]
    return {"email": account, "scopes": narrow if account == DEFAULT_ACCOUNT else [SCOPE]}


def _network_interface(settings: Settings, *, zone: str) -> dict[str, Any]:
    # gVNIC needs an image with the guest OS feature GVNIC, which COS and Deep Learning VM have:
    # https://cloud.google.com/compute/docs/networking/using-gvnic
    interface: dict[str, Any] = {"nicType": "GVNIC"}
    if settings.network or not settings.subnetwork:
        interface["network"] = network_path(settings)
    if settings.subnetwork:
        # A name: of one in each region.
        collection = f"projects/{settings.project}/regions/{region_of(zone)}/subnetworks"
        interface["subnetwork"] = _path(settings.subnetwork, collection)
    if settings.needs_external_ip:
        interface["accessConfigs"] = [{"name": "External NAT", "type": "ONE_TO_ONE_NAT"}]
    return interface


def _reservation_affinity(settings: Settings) -> dict[str, Any]:
    if settings.provisioning == "reservation" and settings.reservation:
        key = "compute.googleapis.com/reservation-name"
        return {"consumeReservationType": "SPECIFIC_RESERVATION", "key": key, "values": [settings.reservation]}
    # Else a VM takes a place of whatever open reservation its project has.
    # https://cloud.google.com/compute/docs/instances/reservations-consume
    return {"consumeReservationType": "NO_RESERVATION"}


def _scheduling(kind: NodeKind, *, run_seconds: int, bound: bool) -> dict[str, Any]:
    model = "RESERVATION_BOUND" if bound else _MODELS.get(kind.provisioning, "STANDARD")
    return {
        "provisioningModel": model,
        # Serves both preemption and the time limit. Stopped VMs would still cost their disks.
        "instanceTerminationAction": "DELETE",
        # VMs with GPUs cannot migrate, Spot VMs may not.
        "onHostMaintenance": "TERMINATE",
        # Refused with Spot and flex-start. And a node that came back empty would not be the node that the run has lost.
        "automaticRestart": False,
        "maxRunDuration": {"seconds": str(run_seconds)},
    }


def _metadata(spec: ClusterSpec, settings: Settings, group: Group) -> dict[str, str]:
    kind = group.kind
    _, gpu_count = kind.gpus
    items = {
        "startup-script": startup.render(
            image=spec.image,
            registry_login=google_registry(spec.image.partition("/")[0]),
            gpu=gpu_count > 0,
            driver=catalog.machine(kind.machine_type).driver,
            settled_at=settings.settled_at,
        ),
        "shutdown-script": startup.render_shutdown(),
        "enable-guest-attributes": "TRUE",
        # Only the holder of the cluster's own key gets in, by the container's own sshd. `enable-oslogin` is left out:
        # FALSE is refused under the policy compute.requireOsLogin.
        "block-project-ssh-keys": "TRUE",
        METADATA_IMAGE: spec.image,
        METADATA_BUCKET: spec.bucket,
        METADATA_AUTHORIZED_KEY: spec.authorized_key,
    }
    if (data := _data(spec, settings)) is not None:
        items[METADATA_DATA] = data
    if settings.idle_seconds is not None:
        items[METADATA_IDLE] = f"{settings.idle_seconds:g}"
    if settings.storage_endpoint:
        items[METADATA_STORAGE_ENDPOINT] = settings.storage_endpoint
    if settings.endpoint:
        items[METADATA_COMPUTE_ENDPOINT] = settings.endpoint
    return items


def _data(spec: ClusterSpec, settings: Settings) -> str | None:
    """The request for data sets as a run on all nodes makes it (node/data), so that the run joins the fetch."""
    if not spec.data:
        return None
    wanted = DataRequest(
        sets=tuple(
            DataSet(name=name, source=each.source, per_node=each.per_node)
            for name, each in spec.data.items()
            if each.folder is None
        ),
        index=0,
        count=spec.nodes,
        endpoint=settings.storage_endpoint,
    )
    return json.dumps({**wanted.to_json(), "index": "@INDEX@"})


def firewall_bodies(spec: ClusterSpec, settings: Settings) -> list[dict[str, Any]]:
    """`Firewall` bodies of the cluster's own rules, which let nobody in to the nodes of another one.

    One lets the laptop (or IAP) reach the containers' sshd. One lets the nodes reach each other: Horovod, Open MPI and
    NCCL pick ports at random.
    """
    tag = cluster_tag(spec)
    common = {
        "description": _description(spec),
        "network": network_path(settings),
        "direction": "INGRESS",
        "targetTags": [tag],
    }
    source = IAP_RANGE if settings.ssh_source == IAP else settings.ssh_source
    ssh = [{"IPProtocol": "tcp", "ports": [str(SSH_PORT)]}]
    return [
        {"name": f"{tag}-ssh", **common, "sourceRanges": [source], "allowed": ssh},
        {"name": f"{tag}-mesh", **common, "sourceTags": [tag], "allowed": [{"IPProtocol": "all"}]},
    ]


def placement_body(spec: ClusterSpec, settings: Settings) -> dict[str, Any] | None:
    """The `ResourcePolicy` of a compact placement, for the region of the nodes; None: they need none or take none.

    A reservation has the placement that it was made with, and flex-start chooses where all VMs fit. Best effort:
    without a distance, VMs are made all the same.
    https://docs.cloud.google.com/ai-hypercomputer/docs/placement-policy-and-workload-policy
    """
    takes = catalog.machine(settings.machine_type).compact and settings.provisioning in ("standard", "spot")
    if not (settings.placement and takes and spec.nodes > 1):
        return None
    policy = {"collocation": "COLLOCATED"}
    return {"name": cluster_tag(spec), "description": _description(spec), "groupPlacementPolicy": policy}


def _description(spec: ClusterSpec) -> str:
    """The labels, for what has none: a cleanup reads the owner from here."""
    return " ".join(f"{key}={value}" for key, value in spec.labels.items())


def cluster_tag(spec: ClusterSpec) -> str:
    """The network tag of its VMs alone, the name of their group and placement, and how firewall rules' names begin."""
    return f"hvdcloud-{spec.name}-{spec.id}"


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
