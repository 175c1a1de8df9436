"""What nodes say of themselves and of each other. They are not trusted: what is no plausible number is missing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hvdcloud.json_values import mapping, mappings, text
from hvdcloud.runs.reports import number, whole

_XID = re.compile(r"NVRM: Xid \([^)]{0,40}\): (\d{1,4})\b")
_LONGEST = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHealth:
    """One GPU. None: it does not tell."""

    index: int
    name: str = ""
    ecc_errors: int | None = None
    """Uncorrected, since the driver was loaded."""
    retirement_pending: bool = False
    """Memory pages wait for a restart to be taken out of use."""
    remapping_failed: bool = False
    """No spare row of memory was left for a broken one."""
    throttle_reasons: int | None = None
    """Bits, as NVML's nvmlClocksThrottleReasons names them."""
    link_width: int | None = None
    """PCI Express lanes in use; `link_width_most`: that it has."""
    link_width_most: int | None = None
    temperature: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFinding:
    """One node by itself. Speeds are in bytes a second; None: not measured."""

    node: str
    error: str = ""
    """Why it was not measured at all."""
    cores: int | None = None
    memory: int | None = None
    """Bytes."""
    cpu: float | None = None
    """What all cores together hash with SHA-256, if they have nothing else to do."""
    cpu_share: float | None = None
    """The part of its cores' time that it got for that, 0 to 1."""
    cpu_limit: float | None = None
    """Cores that its control group grants; None: as many as it has."""
    cpu_stolen: float | None = None
    """The part of the time that the machine under the VM took for others, 0 to 1."""
    disk_write: float | None = None
    disk_error: str = ""
    bucket_up: float | None = None
    bucket_down: float | None = None
    bucket_error: str = ""
    gpus_expected: int = 0
    gpus: Sequence[GpuHealth] = ()
    gpu_trouble: str = ""
    xids: Sequence[int] = ()
    """Errors of the NVIDIA driver in its boot log, each number once."""

    def best_of(self, other: MachineFinding) -> MachineFinding:
        """This and another measurement of the same node: of each speed the higher one, and else the newer, `other`.

        What another program did for a moment makes a node slow once, and nothing makes it faster than it is.
        """
        return replace(
            other,
            cpu=_higher(self.cpu, other.cpu),
            cpu_share=_higher(self.cpu_share, other.cpu_share),
            disk_write=_higher(self.disk_write, other.disk_write),
            bucket_up=_higher(self.bucket_up, other.bucket_up),
            bucket_down=_higher(self.bucket_down, other.bucket_down),
        )

    def without_lasting_faults(self) -> MachineFinding:
        """Without what another measurement does not change: what its GPUs and their driver say is broken."""
        return replace(self, gpus=[GpuHealth(index=each.index) for each in self.gpus], xids=())


def _higher(one: float | None, other: float | None) -> float | None:
    return max((each for each in (one, other) if each is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduce:
    """An all-reduce between nodes, as a training step does it."""

    nodes: Sequence[str]
    ranks: int = 0
    size: int = 0
    """Bytes of the large message."""
    seconds: float | None = None
    """The median of one all-reduce of it."""
    latency: float | None = None
    """The median of one of four bytes; Horovod itself waits up to its cycle time, 1 ms, to begin."""
    error: str = ""
    """Why there is no result."""

    @property
    def bandwidth(self) -> float | None:
        """Bytes a second that each rank has to send at least: 2 (n - 1) / n times the message, by its time; of two
        ranks the message itself. It can be compared between any numbers of ranks, and with a network's."""
        if not self.seconds or self.ranks < 2:
            return None
        return 2 * (self.ranks - 1) / self.ranks * self.size / self.seconds

    def best_of(self, other: AllReduce) -> AllReduce:
        """This and another measurement between the same nodes: that of the higher bandwidth, with the lower latency."""
        if self.error or other.error:
            return other if self.error else self
        faster = max(self, other, key=lambda each: each.bandwidth or 0.0)
        return replace(faster, latency=min(each.latency or 0.0 for each in (self, other)))


def machine_finding(node: str, answer: Mapping[str, Any], *, gpus: int, boot_log: str = "") -> MachineFinding:
    """From the answer of `check-machine`.

    Args:
        gpus: how many the node had when it joined.
        boot_log: of its machine, where the kernel writes to it.
    """
    cpu, disk, bucket = (mapping(answer.get(name)) for name in ("cpu", "disk", "bucket"))
    memory = number(answer.get("memory"))
    return MachineFinding(
        node=node,
        cores=whole(answer.get("cores")),
        memory=int(memory) if memory is not None else None,
        cpu=_speed(cpu.get("speed")),
        cpu_share=_speed(cpu.get("share")),
        cpu_limit=_speed(cpu.get("limit")),
        cpu_stolen=number(cpu.get("stolen")),
        disk_write=_speed(disk.get("write")),
        disk_error=text(disk.get("error"))[:_LONGEST],
        bucket_up=_speed(bucket.get("up")),
        bucket_down=_speed(bucket.get("down")),
        bucket_error=text(bucket.get("error"))[:_LONGEST],
        gpus_expected=gpus,
        gpus=[_gpu(each) for each in mappings(answer.get("gpus")) if whole(each.get("index")) is not None],
        gpu_trouble=text(answer.get("trouble"))[:_LONGEST],
        xids=xids(boot_log),
    )


def all_reduce(nodes: Sequence[str], answer: Mapping[str, Any]) -> AllReduce:
    """From one result of `check-collective`."""
    seconds, latency = _speed(answer.get("seconds")), _speed(answer.get("latency"))
    ranks, size = whole(answer.get("ranks")), whole(answer.get("size"))
    if seconds is None or latency is None or not ranks or not size:
        return AllReduce(nodes=nodes, error=text(answer.get("error"))[:_LONGEST] or "it said nothing")
    return AllReduce(nodes=nodes, ranks=ranks, size=size, seconds=seconds, latency=latency)


def xids(boot_log: str) -> list[int]:
    """The numbers of the NVIDIA driver's errors in a kernel's log, each once."""
    return sorted({int(found) for found in _XID.findall(boot_log)})


def _speed(value: object) -> float | None:
    found = number(value)
    return found if found is not None and found > 0 else None


def _gpu(value: Mapping[str, Any]) -> GpuHealth:
    return GpuHealth(
        index=whole(value.get("index")) or 0,
        name=text(value.get("name"))[:80],
        ecc_errors=whole(value.get("ecc_errors")),
        retirement_pending=value.get("retirement_pending") is True,
        remapping_failed=value.get("remapping_failed") is True,
        throttle_reasons=whole(value.get("throttle_reasons")),
        link_width=whole(value.get("link_width")),
        link_width_most=whole(value.get("link_width_most")),
        temperature=whole(value.get("temperature")),
    )
