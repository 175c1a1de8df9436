"""The GPUs of a machine with an engine: which there are, who uses them, and which nodes get which.

nvidia-smi, which runs wherever the engine is, says which GPUs there are and what computes on them. Which cluster of
ours holds one is said by labels of containers: they are the lock, also between users, and before a job has touched its
GPU.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from hvdcloud.cluster.model import LABEL_CLUSTER, LABEL_MANAGED_BY, LABEL_OWNER, MANAGED_BY
from hvdcloud.errors import CapacityError, NodeError, UsageError
from hvdcloud.units import counted, size
from hvdcloud.visible import visible, words

LABEL_GPUS = "hvdcloud-gpus"
"""On a container: the UUIDs of its GPUs, with commas between them."""

DEVICES_QUERY = (
    "nvidia-smi",
    "--query-gpu=index,uuid,driver_version,memory.total,memory.used,mig.mode.current,compute_cap,name",
    "--format=csv,noheader,nounits",
)
PROCESSES_QUERY = (
    "nvidia-smi",
    "--query-compute-apps=gpu_uuid,pid,used_gpu_memory,process_name",
    "--format=csv,noheader,nounits",
)
TOOLKIT_HOOK = "nvidia-container-runtime-hook"
"""The program of NVIDIA's container toolkit for which an engine looks in its PATH."""
TOOLKIT_HINT = (
    "install NVIDIA's container toolkit: apt install nvidia-container-toolkit, then sudo nvidia-ctk runtime configure "
    "--runtime=docker && sudo systemctl restart docker"
)
CPU_HINT = "image.device: cpu trains without GPUs"

_MIB = 1 << 20
_UUID = re.compile(r"GPU-[-\w]+", re.ASCII)
_CAPABILITY = re.compile(r"\d{1,3}\.\d{1,3}", re.ASCII)
_CDI_KIND = "nvidia.com/gpu="
_HOLDING = ("created", "running", "paused", "restarting")
"""States of a container in which it has its GPUs, or will have them in a moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU, as nvidia-smi describes it."""

    index: int
    uuid: str
    name: str
    driver: str
    free_bytes: int
    """Of its memory."""
    divided: bool
    """It is in MIG mode: only its parts can be used, which hvdcloud does not give out."""
    capability: str
    """Compute capability: `7.5`."""
    processes: tuple[str, ...] = ()
    """What computes on it: `python (pid 4711, 12.3 GB)`."""

    @property
    def title(self) -> str:
        """`GPU 0`."""
        return f"GPU {self.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A container of ours that has GPUs, or will have them once it is started."""

    container: str
    """Its id."""
    node: str
    cluster: str
    owner: str
    gpus: frozenset[str]
    """UUIDs."""

    def __str__(self) -> str:
        """`cluster digits of alice-laptop`."""
        return f"cluster {self.cluster} of {self.owner or 'another user'}"


Wish: TypeAlias = int | Literal["all"]
"""How many GPUs the configuration asks for, for all nodes on one machine together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuShare:
    """What one node gets."""

    devices: tuple[Device, ...]
    request: Mapping[str, Any]
    """What the engine is asked for, as `device_request` makes it."""


def parse(devices: str, processes: str) -> tuple[Device, ...]:
    """nvidia-smi's answers to both queries: a line for each GPU, memory in MiB, and a line for each process and GPU.
    Other lines are left out."""
    computing = defaultdict(list)
    for uuid, pid, used, name in _rows(processes, 4):
        memory = f", {size(int(used) * _MIB)}" if used.isdecimal() else ""
        if pid.isdecimal():
            # The path of a program says little that its name does not: /home/ann/venv/bin/python3.
            computing[uuid].append(f"{_seen(name.rpartition('/')[2] or name)} (pid {pid}{memory})")
    found = [
        Device(
            index=int(index),
            uuid=uuid,
            name=_seen(name),
            driver=_seen(driver),
            free_bytes=(int(total) - int(used)) * _MIB if total.isdecimal() and used.isdecimal() else 0,
            divided=mig == "Enabled",
            capability=capability,
            processes=tuple(computing[uuid]),
        )
        for index, uuid, driver, total, used, mig, capability, name in _rows(devices, 8)
        if index.isdecimal() and _UUID.fullmatch(uuid) and _CAPABILITY.fullmatch(capability)
    ]
    return tuple(sorted(found, key=lambda device: device.index))


def _rows(output: str, fields: int) -> Iterator[list[str]]:
    """The lines that have so many fields; the last may have commas in it."""
    for line in output.splitlines():
        if len(row := [field.strip() for field in line.split(",", fields - 1)]) == fields:
            yield row


def _seen(text: str) -> str:
    """Any user of the machine may have named a program."""
    return visible(words(text), lines=False)


def holders(api: Any) -> tuple[Holder, ...]:
    """The containers of ours on the engine of docker-py's `api` that have GPUs, or will have them."""
    return tuple(
        Holder(
            container=container["Id"],
            node=container["Names"][0].removeprefix("/"),
            cluster=container["Labels"].get(LABEL_CLUSTER, ""),
            owner=container["Labels"].get(LABEL_OWNER, ""),
            gpus=frozenset(container["Labels"][LABEL_GPUS].split(",")),
        )
        for container in api.containers(all=True, filters={"label": [f"{LABEL_MANAGED_BY}={MANAGED_BY}", LABEL_GPUS]})
        if container["State"] in _HOLDING
    )


def claim(api: Any, made: Collection[str]) -> None:
    """Make sure that no other container holds a GPU of these, which may be started then.

    A command creates its containers, then lists all of them, and starts its own only if no other container holds one
    of their GPUs. Of two commands at the same moment, at least one sees the other's containers, since each has created
    its own before it lists.

    Args:
        made: ids of containers of one cluster, all that it wants to start on this engine.

    Raises:
        CapacityError: another one holds some. The caller deletes or ends its containers.
    """
    found = holders(api)
    for own in found:
        for other in found:
            if own.container in made and other.container not in made and own.gpus & other.gpus:
                raise CapacityError(
                    f"{own.node} cannot have its GPUs: {other} has them (container {other.node})",
                    hint="hvdcloud list shows it; if it is not there any more, the same command again",
                )


def users(devices: Sequence[Device], held: Sequence[Holder]) -> Mapping[str, str]:
    """UUID → who uses the GPU, in words, for those that are used.

    Where a cluster of ours holds it, its processes are that cluster's.
    """
    found = {}
    for device in devices:
        clusters = dict.fromkeys(str(holder) for holder in held if device.uuid in holder.gpus)
        if by := [*clusters] or device.processes:
            found[device.uuid] = ", ".join(by)
    return found


def choose(
    devices: Sequence[Device],
    held: Sequence[Holder],
    wish: Wish,
    *,
    nodes: int,
    indices: Sequence[int],
    place: str = "this machine",
) -> Mapping[int, tuple[Device, ...]]:
    """Which GPUs each of these nodes gets; nothing is changed.

    A GPU that another container of ours or another process uses is not taken.

    Args:
        nodes: how many the machine has in all. The GPUs are divided between them, as equally as can be.
        indices: the nodes that are to be made, counted from 0 on this machine.
        place: the machine, in words.

    Raises:
        UsageError: there are not as many.  CapacityError: too few of them are free.
    """
    whole = [device for device in devices if not device.divided]
    total = len(whole) if wish == "all" else wish
    if not whole:
        divided = f": {counted(len(devices), 'GPU')} in MIG mode" if devices else ""
        raise UsageError(f"{place} has no GPU that nodes could use{divided}", hint=CPU_HINT)
    if not nodes <= total <= len(whole):
        raise UsageError(
            f"{place} has {counted(len(whole), 'GPU')}, and {counted(nodes, 'node')} with {total} in all are wanted",
            hint="one node takes them all, with a rank on each: --nodes 1",
        )
    used = users(devices, held)
    free = [device for device in whole if device.uuid not in used]
    taken = [device for device in whole if device.uuid in used]
    each, rest = divmod(total, nodes)
    counts = {index: each + (index < rest) for index in indices}
    if sum(counts.values()) > len(free):
        by = "; ".join(f"{device.title} is used by {used[device.uuid]}" for device in taken)
        raise CapacityError(
            f"{len(free)} of {counted(len(whole), 'GPU')} of {place} are free, and "
            f"{sum(counts.values())} are needed: {by}",
            hint="hvdcloud list shows the clusters; `gpus` in hvdcloud.yaml says how many are taken",
        )
    remaining = iter(free)
    return {index: tuple(next(remaining) for _ in range(count)) for index, count in counts.items()}


def device_request(info: Mapping[str, Any], devices: Sequence[Device], *, hook: bool) -> dict[str, Any]:
    """An element of HostConfig.DeviceRequests: exactly these GPUs.

    By CDI where the engine lists all of them as CDI devices: those that NVIDIA's hook adds are lost to a container when
    systemd reloads its units (NVIDIA's toolkit documents it under "Failed to initialize NVML"). Else by the toolkit.

    Args:
        info: the engine's answer to GET /info; engines before 28.2 do not list CDI devices.
        hook: whether TOOLKIT_HOOK is on the engine's machine; engines before 28.3 do not say.

    Raises:
        NodeError: it has neither.
    """
    found = info.get("DiscoveredDevices") or []
    listed = {str(each.get("ID", "")).removeprefix(_CDI_KIND) for each in found if each.get("Source") == "cdi"}
    # As nvidia-ctk names them.
    for names in ([device.uuid for device in devices], [str(device.index) for device in devices]):
        if names and listed.issuperset(names):
            return {"Driver": "cdi", "DeviceIDs": [f"{_CDI_KIND}{name}" for name in names]}
    if hook or "nvidia" in (info.get("Runtimes") or {}):
        return {
            "Driver": "nvidia",
            "DeviceIDs": [device.uuid for device in devices],
            # What a job needs of the driver: its CUDA libraries, and nvidia-smi.
            "Capabilities": [["gpu", "compute", "utility"]],
        }
    version = info.get("ServerVersion", "?")
    raise NodeError(
        f"the Docker engine ({version}) has neither NVIDIA's container toolkit nor CDI devices, so no container gets a "
        "GPU",
        hint=TOOLKIT_HINT,
    )


def assign_gpus(
    api: Any, found: Sequence[Device], wish: Wish, *, hook: bool, nodes: int, indices: Sequence[int], place: str
) -> list[GpuShare]:
    """What each of these nodes gets on one engine as things are now; nothing is changed, and nothing is claimed.

    Args:
        api: docker-py's, of the engine on the machine with these GPUs.
        hook: as for `device_request`; nodes, indices, place: as for `choose`. So are the errors.
    """
    chosen = choose(found, holders(api), wish, nodes=nodes, indices=indices, place=place)
    info = api.info()
    return [GpuShare(devices=chosen[each], request=device_request(info, chosen[each], hook=hook)) for each in indices]
