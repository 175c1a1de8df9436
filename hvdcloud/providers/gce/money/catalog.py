"""Which machine types and GPUs Compute Engine has, what goes together, where and until when: machines.yaml."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from hvdcloud.errors import UsageError

if TYPE_CHECKING:
    from hvdcloud.config.gce import Provisioning

T = TypeVar("T")

_SAID = {"standard": "", "spot": ", Spot", "flex-start": ", flex-start", "reservation": ", of a reservation"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine type."""

    name: str
    """As the API takes it: `n1-standard-8`."""
    vcpus: int
    memory_gb: float
    gpu_type: str | None = None
    """The GPU that comes with it, whether asked for or not."""
    gpu_count: int = 0
    local_ssd_gb: int = 0
    """That comes with it, and is paid for."""
    spot_only: bool = False
    """It cannot be had on demand."""
    sku: str = ""
    """What the Cloud Billing Catalog calls it, before ` Core` and ` Ram`; empty: not known."""
    vm_image: str
    """The family of Container-Optimized OS that it boots."""
    driver: str
    """The branch of NVIDIA's driver for its GPUs: `R580`."""
    disk_type: str = "pd-balanced"
    """Of its boot disk: the API's default, pd-standard, is slow to unpack an image of many GB."""
    compact: bool = False
    """It takes a compact placement policy."""
    flex: bool = False
    """It can be had by flex-start."""
    nics: int = 1
    """Network interfaces of 200 Gbit/s that it can have, of which a node has one."""

    @property
    def takes_gpus(self) -> bool:
        """GPUs are attached to it in the request: only to N1."""
        return self.gpu_type is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """An accelerator type."""

    name: str
    compute_capability: str
    quota: str | None
    """Regional quota metric; None: the API has none."""
    spot_quota: str | None
    ends: date | None = None
    """From this day on it can neither be created nor started."""
    instead: str | None = None
    limits: dict[int, tuple[int, int]] = field(default_factory=dict)
    """GPUs per N1 machine → most vCPUs, most GB of memory; empty: it comes with its machine types only."""
    zones: tuple[str, ...] = ()
    sku: str = ""
    """What the Cloud Billing Catalog calls it, before ` GPU`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKind:
    """What a VM is, as far as its price and its place go."""

    machine_type: str
    gpu_type: str | None = None
    gpu_count: int = 0
    provisioning: Provisioning = "standard"

    @property
    def gpus(self) -> tuple[str | None, int]:
        """As `gpus_of`."""
        return gpus_of(self.machine_type, self.gpu_type, self.gpu_count)

    def __str__(self) -> str:
        """`n1-standard-8 with 1 nvidia-tesla-t4, Spot`."""
        gpu_type, count = self.gpu_type, self.gpu_count
        # A machine type that the table does not know is shown as well.
        with contextlib.suppress(UsageError):
            gpu_type, count = self.gpus
        gpus = f" with {count} {gpu_type}" if gpu_type and count else ""
        return f"{self.machine_type}{gpus}{_SAID[self.provisioning]}"


def machine(machine_type: str) -> Machine:
    """The machine type of this name. Raises UsageError: it is not in the table."""
    return _looked_up(machine_type, machines(), what="gce.machine_type", table="machine types")


def gpu(gpu_type: str) -> Gpu:
    """The accelerator type of this name. Raises UsageError: it is not in the table."""
    return _looked_up(gpu_type, gpus(), what="gce.gpu.type", table="GPUs")


@cache
def machines() -> Mapping[str, Machine]:
    """Every machine type, by name."""
    return {
        name: Machine(
            name=name,
            vcpus=size[0],
            memory_gb=size[1],
            gpu_type=family.get("gpu"),
            gpu_count=size[2] if "gpu" in family else 0,
            local_ssd_gb=size[3] if len(size) > 3 else 0,
            spot_only=name in family.get("spot_only", ()),
            sku=family.get("sku", ""),
            vm_image=family["vm_image"],
            driver=family["driver"],
            disk_type=family.get("disk", "pd-balanced"),
            compact=family.get("compact", False),
            flex=family.get("flex", False),
            nics=family.get("nics", {}).get(name, 1),
        )
        for family in _table()["families"].values()
        for name, size in family["machines"].items()
    }


@cache
def gpus() -> Mapping[str, Gpu]:
    """Every accelerator type, by name."""
    return {
        name: Gpu(
            name=name,
            **{key: value for key, value in entry.items() if key not in ("n1", "zones")},
            limits={count: (most[0], most[1]) for count, most in entry.get("n1", {}).items()},
            zones=tuple(
                f"{region}-{letter}"
                for line in entry.get("zones", [])
                for region, letters in line.items()
                for letter in letters
            ),
        )
        for name, entry in _table()["gpus"].items()
    }


def other_skus() -> Mapping[str, Mapping[str, str]]:
    """What else is paid for: the price table's name → what the Cloud Billing Catalog has it under."""
    found: Mapping[str, Mapping[str, str]] = _table()["skus"]
    return found


def gpus_of(machine_type: str, gpu_type: str | None, gpu_count: int) -> tuple[str | None, int]:
    """The GPUs that one node has: its machine type's own, else the configured ones. Raises as `machine`."""
    kind = machine(machine_type)
    if kind.gpu_type:
        return kind.gpu_type, kind.gpu_count
    return (gpu_type, gpu_count) if gpu_type and gpu_count else (None, 0)


def problem(machine_type: str, gpu_type: str | None, gpu_count: int, *, today: date) -> UsageError | None:
    """Why no VM of this kind can be made; None: the table knows of no reason. Raises as `machine` and `gpu`.

    The rules for GPUs on N1: https://cloud.google.com/compute/docs/gpus#n1-gpus
    """
    kind = machine(machine_type)
    node_gpu, count = gpus_of(machine_type, gpu_type, gpu_count)
    if node_gpu is None:
        return None
    found = gpu(node_gpu)
    if kind.gpu_type and gpu_type and (gpu_type, gpu_count) != (kind.gpu_type, kind.gpu_count):
        return UsageError(
            f"{machine_type} comes with {kind.gpu_count} {kind.gpu_type}, gce.gpu asks for {gpu_count} {gpu_type}",
            hint=f"write gce.gpu: {{type: {kind.gpu_type}, count: {kind.gpu_count}}}, or gce.gpu: null",
        )
    if found.ends and found.ends <= today:
        message = f"Compute Engine switched {found.name} off on {found.ends}"
        return UsageError(message, hint=f"take {found.instead}")
    if kind.gpu_type:
        return None
    vcpus, memory_gb = found.limits.get(count, (0, 0))
    if kind.vcpus <= vcpus and kind.memory_gb <= memory_gb:
        return None
    own = [each.name for each in machines().values() if each.gpu_type == found.name]
    on_n1 = [f"{each} with at most {most[0]} vCPUs and {most[1]} GB" for each, most in found.limits.items()]
    return UsageError(
        f"{count} {found.name} cannot be attached to {kind.name}",
        hint=f"on N1: {'; '.join(on_n1)}" if on_n1 else f"write gce.machine_type: one of {', '.join(own)}",
    )


def zones_with(gpu_type: str | None) -> tuple[str, ...]:
    """Zones that have the GPU (None: N1 machines without one), in the order to try. Empty: the API has to be asked."""
    if gpu_type:
        return gpu(gpu_type).zones
    return tuple(dict.fromkeys(zone for each in gpus().values() if each.limits for zone in each.zones))


def _looked_up(name: str, known: Mapping[str, T], *, what: str, table: str) -> T:
    if name in known:
        return known[name]
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.7)
    hint = f"did you mean {' or '.join(close)}?" if close else f"one of {', '.join(known)}"
    raise UsageError(f"{what}: {name} is not in the table of {table}", hint=hint)


@cache
def _table() -> Any:
    return yaml.safe_load(Path(__file__).with_name("machines.yaml").read_text(encoding="utf-8"))
