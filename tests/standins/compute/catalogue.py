"""Where there is what: zones, machine types, GPUs and images; a small part of Google's, and fixed.

Where T4, V100 and P4 are: a public catalogue of 2026 (skypilot-catalog v8); limits of N1 with GPUs and sizes of the
other families: https://cloud.google.com/compute/docs/gpus (August 2026). Where H100 Mega, H200 and B200 are: the same
catalogue, as far as its zones are here. In which zones L4, A100, H100 and RTX PRO 6000 are is only meant to look real.
"""

from __future__ import annotations

from dataclasses import dataclass, field

ZONES: dict[str, tuple[str, ...]] = {
    "us-central1": ("us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f"),
    "us-east1": ("us-east1-b", "us-east1-c", "us-east1-d"),
    "us-east4": ("us-east4-a", "us-east4-b", "us-east4-c"),
    "us-west1": ("us-west1-a", "us-west1-b", "us-west1-c"),
    "europe-west1": ("europe-west1-b", "europe-west1-c", "europe-west1-d"),
    "europe-west4": ("europe-west4-a", "europe-west4-b", "europe-west4-c"),
    "asia-east1": ("asia-east1-a", "asia-east1-b", "asia-east1-c"),
}
REGION_OF = {zone: region for region, zones in ZONES.items() for zone in zones}
ZONE_SCOPES = tuple(f"zones/{zone}" for zone in sorted(REGION_OF))
REGION_SCOPES = tuple(f"regions/{region}" for region in sorted(ZONES))


def _zones(text: str) -> frozenset[str]:
    """ "us-central1-a/b us-west1-b" """
    names = set()
    for part in text.split():
        region, _, letters = part.rpartition("-")
        names |= {f"{region}-{letter}" for letter in letters.split("/")}
    return frozenset(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """A GPU model.

    Attributes:
        metric: its quota; None where it has none of this kind.
        n1: count → (most vCPUs, most GB) of an N1 machine with this many; empty if N1 can't have it.
        gone: it can't be had any more.
    """

    name: str
    metric: str | None
    zones: frozenset[str]
    n1: dict[int, tuple[int, float]] = field(default_factory=dict)
    gone: bool = False


ACCELERATORS = {
    one.name: one
    for one in (
        Accelerator(
            name="nvidia-tesla-t4",
            metric="NVIDIA_T4_GPUS",
            zones=_zones(
                "us-central1-a/b/c/f us-east1-b/c/d us-east4-a/b/c us-west1-a/b europe-west1-b/c/d "
                "europe-west4-a/b/c asia-east1-a/c"
            ),
            n1={1: (48, 312), 2: (48, 312), 4: (96, 624)},
        ),
        Accelerator(
            name="nvidia-tesla-v100",
            metric="NVIDIA_V100_GPUS",
            zones=_zones("us-central1-a/b/c/f us-east1-b/c us-west1-a/b europe-west4-a/b/c asia-east1-c"),
            n1={1: (12, 78), 2: (24, 156), 4: (48, 312), 8: (96, 624)},
        ),
        Accelerator(
            name="nvidia-tesla-p100",
            metric="NVIDIA_P100_GPUS",
            zones=_zones("us-central1-c"),
            n1={1: (16, 104), 2: (32, 208), 4: (96, 624)},
            gone=True,
        ),
        Accelerator(
            name="nvidia-l4",
            metric="NVIDIA_L4_GPUS",
            zones=_zones(
                "us-central1-a/b/c us-east1-b/c/d us-east4-a/c us-west1-a/b europe-west4-a/b/c asia-east1-a/b/c"
            ),
        ),
        Accelerator(
            name="nvidia-tesla-a100",
            metric="NVIDIA_A100_GPUS",
            zones=_zones("us-central1-a/b/c/f us-east1-b us-west1-b europe-west4-a/b"),
        ),
        Accelerator(
            name="nvidia-a100-80gb",
            metric="NVIDIA_A100_80GB_GPUS",
            zones=_zones("us-central1-a/c us-east4-c europe-west4-a"),
        ),
        Accelerator(
            name="nvidia-h100-80gb",
            metric=None,
            zones=_zones("us-central1-a/c us-east4-a/b us-west1-a europe-west4-b/c"),
        ),
        # Of these the API has no quota: discovery document, Quota.metric.
        Accelerator(
            name="nvidia-h100-mega-80gb",
            metric=None,
            zones=_zones(
                "us-central1-a/b/c us-east4-a/b/c us-west1-a/b europe-west4-b/c europe-west1-b/c asia-east1-c"
            ),
        ),
        Accelerator(
            name="nvidia-h200-141gb",
            metric=None,
            zones=_zones("us-central1-b us-east4-b us-west1-c europe-west4-a europe-west1-b"),
        ),
        Accelerator(
            name="nvidia-b200", metric=None, zones=_zones("us-central1-b us-east1-b us-east4-b europe-west4-b")
        ),
        Accelerator(name="nvidia-rtx-pro-6000", metric=None, zones=_zones("us-central1-b us-east4-b europe-west4-b")),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine type.

    Attributes:
        gpus: those that come with it.
        on_demand: also without SPOT or FLEX_START: https://cloud.google.com/compute/docs/gpus#a3-high
        hyperdisk: its disks are Hyperdisks; those of all others here are not.
    """

    name: str
    cpus: int
    memory_mb: int
    gpus: tuple[str, int] | None = None
    shared: bool = False
    on_demand: bool = True
    hyperdisk: bool = False

    @property
    def family(self) -> str:
        return self.name.partition("-")[0]

    @property
    def zones(self) -> frozenset[str]:
        return ACCELERATORS[self.gpus[0]].zones if self.gpus else frozenset(REGION_OF)


def _machines() -> dict[str, Machine]:
    found = [
        Machine(name="f1-micro", cpus=1, memory_mb=614, shared=True),
        Machine(name="g1-small", cpus=1, memory_mb=1740, shared=True),
        Machine(name="n1-standard-1", cpus=1, memory_mb=3840),
        Machine(name="e2-micro", cpus=2, memory_mb=1024, shared=True),
        Machine(name="e2-small", cpus=2, memory_mb=2048, shared=True),
        Machine(name="e2-medium", cpus=2, memory_mb=4096, shared=True),
    ]
    for cpus in (2, 4, 8, 16, 32, 64, 96):
        for kind, gigabytes in (("standard", 3.75), ("highmem", 6.5), ("highcpu", 0.9)):
            memory_mb = int(cpus * gigabytes * 1024)
            found.append(Machine(name=f"n1-{kind}-{cpus}", cpus=cpus, memory_mb=memory_mb))
    for cpus in (2, 4, 8, 16, 32):
        found.append(Machine(name=f"e2-standard-{cpus}", cpus=cpus, memory_mb=cpus * 4096))
    for cpus, count in ((4, 1), (8, 1), (12, 1), (16, 1), (32, 1), (24, 2), (48, 4), (96, 8)):
        found.append(
            Machine(
                name=f"g2-standard-{cpus}",
                cpus=cpus,
                memory_mb=cpus * 4096,
                gpus=("nvidia-l4", count),
            )
        )
    for count in (1, 2, 4, 8):
        for name, gpu, cpus, gigabytes in (
            ("a2-highgpu", "nvidia-tesla-a100", 12, 85),
            ("a2-ultragpu", "nvidia-a100-80gb", 12, 170),
            ("a3-highgpu", "nvidia-h100-80gb", 26, 234),
        ):
            found.append(
                Machine(
                    name=f"{name}-{count}g",
                    cpus=cpus * count,
                    memory_mb=gigabytes * count << 10,
                    gpus=(gpu, count),
                    on_demand=name != "a3-highgpu" or count == 8,
                )
            )
    for name, gpu, count, cpus, gigabytes in (
        ("a2-megagpu-16g", "nvidia-tesla-a100", 16, 96, 1360),
        ("a3-megagpu-8g", "nvidia-h100-mega-80gb", 8, 208, 1872),
        ("a3-ultragpu-8g", "nvidia-h200-141gb", 8, 224, 2952),
        ("a4-highgpu-8g", "nvidia-b200", 8, 224, 3968),
        *(
            (f"g4-standard-{48 * count}", "nvidia-rtx-pro-6000", count, 48 * count, 180 * count)
            for count in (1, 2, 4, 8)
        ),
    ):
        hyperdisk = name.startswith(("a3-ultra", "a4", "g4"))
        found.append(Machine(name=name, cpus=cpus, memory_mb=gigabytes << 10, gpus=(gpu, count), hyperdisk=hyperdisk))
    return {machine.name: machine for machine in found}


MACHINES = _machines()


def machine(name: str) -> Machine | None:
    """A machine type by name."""
    return MACHINES.get(name)


DISK_TYPES = {False: ("pd-standard", "pd-balanced", "pd-ssd"), True: ("hyperdisk-balanced",)}
"""Those of machine types without and with Hyperdisk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    project: str
    family: str
    name: str
    size_gb: int


IMAGES = (
    Image(project="cos-cloud", family="cos-125-lts", name="cos-125-19216-104-100", size_gb=10),
    Image(project="cos-cloud", family="cos-121-lts", name="cos-121-18867-381-68", size_gb=10),
    Image(project="debian-cloud", family="debian-12", name="debian-12-bookworm-v20261012", size_gb=10),
)
