"""What Compute Engine and the bucket hold of a cluster."""

from __future__ import annotations

from tests.support.cloud import Cloud
from tests.support.harness import Project


def left(cloud: Cloud, project: Project) -> list[str]:
    """What Compute Engine holds of a cluster."""
    return [link for link in cloud.left() if project.name in link]


def vms(cloud: Cloud, project: Project) -> dict[str, str]:
    """The status of every VM of a cluster, by name."""
    instances = [vm for vm in cloud.emulator.state.instances() if vm["labels"]["hvdcloud-cluster"] == project.name]
    return {vm["name"]: vm["status"] for vm in instances}


def zone_of(cloud: Cloud, vm: str) -> str:
    """Where a VM is."""
    (instance,) = (found for found in cloud.emulator.state.instances() if found["name"] == vm)
    return str(instance["zone"].rpartition("/")[2])


def in_bucket(cloud: Cloud, project: Project) -> set[str]:
    """The checkpoints that are in the bucket."""
    names = list(cloud.storage.store.bucket("bucket").names)
    return {name.rpartition("/")[2] for name in names if f"/{project.name}/" in name and name.endswith(".pt")}
