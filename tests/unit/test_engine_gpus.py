"""The GPUs of a machine: what nvidia-smi and the engine say, who uses one, and which node gets which."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from hvdcloud.errors import CapacityError, UsageError
from hvdcloud.providers.engine import gpus
from hvdcloud.providers.engine.gpus import Device, choose, device_request, holders

# As a DGX Station's driver answers, and one of a machine where two programs compute and one GPU is in MIG mode.
DEVICES = """\
0, GPU-1f6b3a5e-0c5b-7d2e-6a53-0a3f4f1d9a10, 535.129.03, 32768, 0, [N/A], 7.0, Tesla V100-DGXS-32GB
1, GPU-2a7c4b6f-1d6c-8e3f-7b64-1b405f2eab21, 535.129.03, 32768, 11760, [N/A], 7.0, Tesla V100-DGXS-32GB
2, GPU-3b8d5c70-2e7d-9f40-8c75-2c516030bc32, 535.129.03, 32768, 0, [N/A], 7.0, Tesla V100-DGXS-32GB
3, GPU-4c9e6d81-3f8e-a051-9d86-3d627141cd43, 535.129.03, 32768, 900, [N/A], 7.0, Tesla V100-DGXS-32GB
"""
PROCESSES = """\
GPU-2a7c4b6f-1d6c-8e3f-7b64-1b405f2eab21, 4711, 11752, /home/ann/venv/bin/python3
GPU-4c9e6d81-3f8e-a051-9d86-3d627141cd43, 812, [N/A], render, all
"""
UUIDS = [line.split(", ")[1] for line in DEVICES.splitlines()]
FOUR = gpus.parse(DEVICES, PROCESSES)
IDLE = gpus.parse(DEVICES, "")


def container(*uuids: str, state: str = "running") -> dict[str, Any]:
    """As the engine lists a container of ours."""
    ours = {"managed-by": "hvdcloud", "hvdcloud-cluster": "digits", "hvdcloud-owner": "ben-box", "hvdcloud-id": "a1"}
    ours |= {"hvdcloud-created": "1700000000", gpus.LABEL_GPUS: ",".join(uuids)}
    return {"Id": "c0", "Names": ["/digits-0"], "State": state, "Labels": ours}


def held_by(listed: dict[str, Any]) -> tuple[gpus.Holder, ...]:
    """Where the engine lists this one container."""
    return holders(SimpleNamespace(containers=lambda **_: [listed]))


def test_what_nvidia_smi_says_of_gpus_is_read() -> None:
    first, second = FOUR[:2]
    assert (first.index, first.name, first.driver, first.uuid) == (0, "Tesla V100-DGXS-32GB", "535.129.03", UUIDS[0])
    assert (first.free_bytes, second.free_bytes) == (32768 << 20, (32768 - 11760) << 20)
    assert (first.divided, first.capability) == (False, "7.0")
    assert gpus.parse("0, GPU-5e, 550.54.15, 81559, 1, Enabled, 9.0, NVIDIA H100 80GB HBM3\n", "")[0].divided


def test_another_users_words_do_not_act_on_the_terminal() -> None:
    (device,) = gpus.parse("0, GPU-1, 535\x1b[2J, 1, 2, [N/A], 7.5, T4\x1b[2J\n", "GPU-1, 7, 1, evil\x1b[2J\n")
    assert device.processes
    assert "\x1b" not in f"{device.processes}{device.name}{device.driver}".encode("unicode-escape").decode().replace(
        "\\\\x1b", ""
    )
    assert gpus.parse("0, GPU-1\x1b[2J, 535, 1, 2, [N/A], 7.5, T4\n", "") == ()


@pytest.mark.parametrize(
    ("state", "holds"),
    [("created", True), ("running", True), ("paused", True), ("restarting", True), ("exited", False), ("dead", False)],
)
def test_a_container_holds_its_gpus_until_it_ends(state: str, holds: bool) -> None:
    assert bool(held_by(container(UUIDS[0], state=state))) is holds


def test_too_few_free_gpus_are_refused_with_who_uses_the_others() -> None:
    with pytest.raises(CapacityError) as refused:
        choose(FOUR, held_by(container(UUIDS[0])), "all", nodes=2, indices=range(2))
    assert refused.value.message == (
        "1 of 4 GPUs of this machine are free, and 4 are needed: GPU 0 is used by cluster digits of ben-box; "
        "GPU 1 is used by python3 (pid 4711, 12.3 GB); GPU 3 is used by render, all (pid 812)"
    )


@pytest.mark.parametrize(
    ("found", "count", "nodes", "said"),
    [
        ((), "all", 1, "this machine has no GPU that nodes could use"),
        (IDLE, 5, 1, "this machine has 4 GPUs, and 1 node with 5 in all are wanted"),
        (IDLE, "all", 5, "this machine has 4 GPUs, and 5 nodes with 4 in all are wanted"),
        (gpus.parse("0, GPU-5e, 550.54.15, 81559, 1, Enabled, 9.0, H100\n", ""), "all", 1,
         "no GPU that nodes could use: 1 GPU in MIG mode"),
    ],
)  # fmt: skip
def test_what_the_machine_does_not_have_is_refused(
    found: Sequence[Device], count: int | Literal["all"], nodes: int, said: str
) -> None:
    with pytest.raises(UsageError) as refused:
        choose(found, (), count, nodes=nodes, indices=range(nodes))
    assert said in refused.value.message


# GET /info of Docker 20.10 without and with the toolkit, and of 28.3, whose CDI directories are always searched.
OLD: dict[str, Any] = {"ServerVersion": "20.10.24", "Runtimes": {"runc": {"path": "runc"}}}
TOOLKIT = OLD | {"Runtimes": {"nvidia": {"path": "nvidia-container-runtime"}, "runc": {"path": "runc"}}}
CDI: dict[str, Any] = {
    "ServerVersion": "28.3.0",
    "Runtimes": {"nvidia": {}, "runc": {}},
    "CDISpecDirs": ["/etc/cdi", "/var/run/cdi"],
    "DiscoveredDevices": [{"Source": "cdi", "ID": f"nvidia.com/gpu={name}"} for name in ("0", "1", "2", "3", "all")],
}


@pytest.mark.parametrize(
    ("info", "hook", "way"),
    [
        (OLD, True, "nvidia"),
        (TOOLKIT, False, "nvidia"),
        (CDI, False, "cdi"),
        (CDI | {"DiscoveredDevices": CDI["DiscoveredDevices"][:2]}, False, "nvidia"),
    ],
)
def test_the_engine_says_how_containers_get_gpus(info: dict[str, Any], hook: bool, way: str) -> None:
    assert device_request(info, IDLE, hook=hook)["Driver"] == way
