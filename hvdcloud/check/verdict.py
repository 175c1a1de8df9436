"""What a node's figures say of it: ok, slow or bad, each with its reasons. Pure.

A node is compared with the others of its kind, which do the same at the same time, and with what its machine type
promises, where that is known. It is bad if something is broken, or far slower than the others are; slow if it is only
slower. What a promise alone finds is slow, never bad: software that is not hvdcloud's may be the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median

from hvdcloud.check.findings import AllReduce, GpuHealth, MachineFinding
from hvdcloud.providers.base import Promise
from hvdcloud.units import counted, size

_Say = Callable[[float], str]


class Health(str, Enum):
    """How a node is."""

    OK = "ok"
    SLOW = "slow"
    BAD = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeVerdict:
    """One node, and why."""

    node: str
    health: Health
    reasons: Sequence[str]
    machine: MachineFinding
    bandwidth: float | None
    """Bytes a second of its best pair; None: it was in none."""
    latency: float | None
    """Seconds of its best pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limits:
    """Parts of the others' median below which a node is slow, and bad."""

    slow: float
    bad: float


# Disks and buckets vary more from one minute to the next than processors do.
_SHARE = _Limits(slow=0.5, bad=0.0)
"""Another program may use a node's cores for a moment."""
_MOST_STOLEN = 0.1
_CPU, _MEMORY = _Limits(slow=0.7, bad=0.4), _Limits(slow=0.9, bad=0.5)
_NETWORK, _LATENCY = _Limits(slow=0.6, bad=0.3), _Limits(slow=0.3, bad=0.1)
_DISK = _BUCKET = _Limits(slow=0.4, bad=0.1)
_PROMISED_NETWORK = 0.25
"""Of a machine type's most: Horovod with Gloo uses one connection and one core, NCCL over TCP a few."""
_PROMISED_DISK = 0.5
# https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
_THROTTLED = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "thermal slowdown",
    0x80: "power brake",
}
# https://docs.nvidia.com/deploy/xid-errors/: a program's own faults, and those after which a GPU is not to be used.
_OF_PROGRAMS = frozenset({13, 31, 43, 45})
_BROKEN = frozenset({48, 62, 64, 74, 79, 95, 119, 120})


def judge(
    machines: Sequence[MachineFinding], pairs: Sequence[AllReduce], *, promises: Mapping[str, Promise | None]
) -> list[NodeVerdict]:
    """A verdict on every node, in their order.

    Args:
        pairs: between two nodes each.
        promises: by node what its machine type promises; None: nothing is known. Nodes of one promise are compared.
    """
    found: dict[str, list[tuple[Health, str]]] = {each.node: [] for each in machines}
    bandwidth = {each.node: _best(pairs, each.node, "bandwidth") for each in machines}
    speed = {each.node: _best(pairs, each.node, "inverse latency") for each in machines}
    for machine in machines:
        found[machine.node] += _by_itself(machine)
        found[machine.node] += _without_partner(machine.node, pairs)
        if (promise := promises.get(machine.node)) is not None:
            found[machine.node] += _promised(machine, bandwidth[machine.node], promise)
    kinds: dict[Promise | None, list[MachineFinding]] = {}
    for machine in machines:
        kinds.setdefault(promises.get(machine.node), []).append(machine)
    for alike in kinds.values():
        figures: list[tuple[str, _Limits, _Say, Mapping[str, float | None]]] = [
            ("processor", _CPU, _rate, {each.node: each.cpu for each in alike}),
            ("cores", _CPU, "{:g}".format, {each.node: _granted(each) for each in alike}),
            ("time of its cores", _SHARE, _percent, {each.node: each.cpu_share for each in alike}),
            ("memory", _MEMORY, _bytes, {each.node: each.memory for each in alike}),
            ("disk", _DISK, _rate, {each.node: each.disk_write for each in alike}),
            ("upload to the bucket", _BUCKET, _rate, {each.node: each.bucket_up for each in alike}),
            ("download from the bucket", _BUCKET, _rate, {each.node: each.bucket_down for each in alike}),
            ("all-reduce", _NETWORK, _rate, {each.node: bandwidth[each.node] for each in alike}),
            ("latency of an all-reduce", _LATENCY, _latency, {each.node: speed[each.node] for each in alike}),
        ]
        for name, limits, say, values in figures:
            for node, (health, value, usual) in compare(values, slow=limits.slow, bad=limits.bad).items():
                found[node].append((health, f"{name}: {say(value)}, where the others have {say(usual)}"))
    return [
        NodeVerdict(
            node=each.node,
            health=_worst(health for health, _ in found[each.node]),
            reasons=[reason for _, reason in found[each.node]],
            machine=each,
            bandwidth=bandwidth[each.node],
            latency=1 / fastest if (fastest := speed[each.node]) else None,
        )
        for each in machines
    ]


def compare(values: Mapping[str, float | None], *, slow: float, bad: float) -> dict[str, tuple[Health, float, float]]:
    """Each node with a far smaller figure than the others: how bad that is, its own, and the median of the others'.

    Args:
        values: by node, larger is better; None: it has none, and nothing follows.
        slow: the part of the others' median below which a node is slow; `bad`: below which it is bad.
    """
    known = {node: value for node, value in values.items() if value is not None}
    found = {}
    for node, value in known.items():
        others = [other for another, other in known.items() if another != node]
        if others and value < slow * (usual := median(others)):
            found[node] = (Health.BAD if value < bad * usual else Health.SLOW, value, usual)
    return found


def _rate(value: float) -> str:
    return f"{size(int(value))}/s"


def _bytes(value: float) -> str:
    return size(int(value))


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def _latency(value: float) -> str:
    """Of its inverse, which is better when it is larger, as the other figures are."""
    return f"{1000 / value:.1f} ms" if value else "-"


def _worst(healths: Iterable[Health]) -> Health:
    seen = set(healths)
    return next((health for health in (Health.BAD, Health.SLOW) if health in seen), Health.OK)


def _best(pairs: Sequence[AllReduce], node: str, what: str) -> float | None:
    """The node's best figure of all its pairs: a bad node spoils those of its partners, too."""
    figures = []
    for pair in pairs:
        if node in pair.nodes and not pair.error:
            figure = pair.bandwidth if what == "bandwidth" else 1 / pair.latency if pair.latency else None
            figures += [figure] if figure is not None else []
    return max(figures, default=None)


def _without_partner(node: str, pairs: Sequence[AllReduce]) -> list[tuple[Health, str]]:
    own = [pair for pair in pairs if node in pair.nodes]
    if not own or any(not pair.error for pair in own):
        return []
    others = ", ".join(other for pair in own for other in pair.nodes if other != node)
    return [(Health.BAD, f"no all-reduce with {others}: {own[0].error}")]


def _by_itself(machine: MachineFinding) -> list[tuple[Health, str]]:
    if machine.error:
        return [(Health.BAD, machine.error)]
    found = []
    if machine.cpu_stolen is not None and machine.cpu_stolen > _MOST_STOLEN:
        found.append((Health.SLOW, f"{_percent(machine.cpu_stolen)} of its processor's time is stolen"))
    if machine.disk_error:
        found.append((Health.BAD, f"disk: {machine.disk_error}"))
    if machine.bucket_error:
        found.append((Health.BAD, f"bucket: {machine.bucket_error}"))
    if machine.gpus_expected and machine.gpu_trouble:
        found.append((Health.BAD, machine.gpu_trouble))
    elif len(machine.gpus) < machine.gpus_expected:
        found.append((Health.BAD, f"{len(machine.gpus)} of {counted(machine.gpus_expected, 'GPU')} answer"))
    for gpu in machine.gpus:
        found += [(health, f"GPU {gpu.index}: {reason}") for health, reason in _gpu(gpu)]
    for xid in machine.xids:
        if xid not in _OF_PROGRAMS:
            health = Health.BAD if xid in _BROKEN else Health.SLOW
            found.append((health, f"the NVIDIA driver has logged XID {xid}"))
    return found


def _granted(machine: MachineFinding) -> float | None:
    """How many cores it may use."""
    known = [each for each in (machine.cores, machine.cpu_limit) if each is not None]
    return min(known, default=None)


def _gpu(gpu: GpuHealth) -> list[tuple[Health, str]]:
    found = []
    if gpu.ecc_errors:
        found.append((Health.BAD, counted(gpu.ecc_errors, "uncorrected ECC error")))
    if gpu.retirement_pending:
        found.append((Health.BAD, "pages of its memory wait for a restart to be retired"))
    if gpu.remapping_failed:
        found.append((Health.BAD, "a row of its memory is broken, and none is left to replace it"))
    reasons = [what for bit, what in _THROTTLED.items() if (gpu.throttle_reasons or 0) & bit]
    if reasons:
        heat = f" at {gpu.temperature} °C" if gpu.temperature is not None else ""
        found.append((Health.SLOW, f"its clocks are held down: {', '.join(reasons)}{heat}"))
    if gpu.link_width and gpu.link_width_most and gpu.link_width < gpu.link_width_most:
        found.append((Health.SLOW, f"PCI Express with {gpu.link_width} of {gpu.link_width_most} lanes"))
    return found


def _promised(machine: MachineFinding, bandwidth: float | None, promise: Promise) -> list[tuple[Health, str]]:
    found = []
    wire = promise.network / 8 if promise.network is not None else None
    if wire and bandwidth is not None and bandwidth < _PROMISED_NETWORK * wire:
        found.append((Health.SLOW, f"all-reduce: {_rate(bandwidth)}; {promise.machine} has {_rate(wire)} at most"))
    disk = promise.disk_write
    if disk and machine.disk_write is not None and machine.disk_write < _PROMISED_DISK * disk:
        found.append((Health.SLOW, f"disk: {_rate(machine.disk_write)}; one of its size writes {_rate(disk)}"))
    return found
