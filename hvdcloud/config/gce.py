"""`gce:` in hvdcloud.yaml: Compute Engine."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, Field, model_validator

from hvdcloud.config.section import Section
from hvdcloud.config.types import Text, written_as


def _source(text: str) -> str:
    if text in ("auto", "iap"):
        return text
    try:
        network = ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        raise ValueError(f"{text!r} is neither auto nor iap nor a CIDR, such as 198.51.100.0/24") from None
    if network.prefixlen == 0:
        raise ValueError(f"{text} would show the nodes' sshd to the whole internet")
    if network.version != 4:
        raise ValueError(f"{text} is an IPv6 range, and the nodes have IPv4 addresses only")
    return str(network)


Provisioning: TypeAlias = Literal["standard", "spot", "flex-start", "reservation"]
"""How Compute Engine is asked for VMs, as `gce.provisioning` says it."""

_RESERVATION = r"(projects/[^/\s]+/reservations/)?[a-z]([-a-z0-9]{0,61}[a-z0-9])?"

L4_MACHINES = {1: "g2-standard-8", 2: "g2-standard-24", 4: "g2-standard-48", 8: "g2-standard-96"}
"""Number of NVIDIA L4 → the machine type that comes with them, which is the default."""


class GpuConfig(Section):
    """The accelerators of one node."""

    type: Text = Field(
        default="nvidia-l4",
        description="Compute Engine's accelerator type; on an N1 gce.machine_type, the default is nvidia-tesla-t4",
    )
    count: int = Field(default=1, ge=0, description="GPUs per node")


class SshConfig(Section):
    """Who may reach the nodes' sshd."""

    source: Annotated[Text, AfterValidator(_source)] = Field(
        default="auto", description="auto: the caller's own address /32 · a CIDR · iap"
    )


class GceConfig(Section):
    """Compute Engine."""

    project: str | None = Field(default=None, description="default: the credentials' project")
    zones: list[Annotated[str, written_as(r".+-.+-.+", "a zone, such as us-central1-b")]] = Field(
        default_factory=list, description="tried in order; empty: every zone known to have the GPU, cheapest first"
    )
    machine_type: str = Field(
        default="n1-standard-8",
        description="machine type of every node; with NVIDIA L4, the default is the g2-standard that has as many: "
        "g2-standard-8 for one",
    )
    gpu: GpuConfig | None = Field(
        default=None,
        description="GPUs of every node. If it is not written, image.device cuda gets one nvidia-l4, on an N1 "
        "gce.machine_type one nvidia-tesla-t4; other machine types bring their own",
    )
    provisioning: Provisioning | None = Field(
        default=None,
        description="how VMs are had; spot, of all nodes or with run.elastic of all but the head: cheaper, may be "
        "taken away; flex-start: all at once, when there is room; default: spot with run.elastic or run.retry, else "
        "standard",
    )
    reservation: Annotated[str, written_as(_RESERVATION, "NAME, or projects/PROJECT/reservations/NAME")] | None = Field(
        default=None,
        description="whose machines the nodes are: NAME, or projects/PROJECT/reservations/NAME of a shared one",
    )
    disk_gb: int = Field(default=100, ge=10, le=65536, description="boot disk")
    vm_image: Literal["cos"] = Field(default="cos", description="Container-Optimized OS")
    network: str | None = Field(default=None, description="VPC network; a terraform output")
    subnetwork: str | None = Field(
        default=None,
        description="subnetwork; a name: those of all regions that have one of this name, a URL: that of one region; "
        "a terraform output",
    )
    service_account: str | None = Field(
        default=None,
        description="the nodes' service account, which a job acts as; a terraform output. default: the project's "
        "default account",
    )
    ssh: SshConfig = Field(default_factory=lambda: SshConfig(), description="who may reach the nodes")

    @model_validator(mode="after")
    def _a_subnetwork_has_a_network(self) -> GceConfig:
        # The firewall rules are the network's, and its name does not follow from the subnetwork's.
        if self.subnetwork and not self.network:
            raise ValueError("subnetwork is set without network; name the network that it is a part of")
        return self

    @model_validator(mode="after")
    def _a_reservation_is_used(self) -> GceConfig:
        if self.reservation and self.provisioning not in (None, "reservation"):
            raise ValueError(f"reservation is set, and provisioning is {self.provisioning}: leave one of them out")
        if self.provisioning == "reservation" and not self.reservation:
            raise ValueError("provisioning is reservation: write which one as reservation: NAME")
        return self
