"""A machine that says it has four GPUs, and clusters that want them at once."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hvdcloud.cluster.model import ClusterSpec
from hvdcloud.errors import HvdcloudError
from hvdcloud.providers.base import Provider

STANDINS = Path(__file__).parents[1] / "standins" / "gpus"
UUIDS = [f"GPU-{index}a6b3c5e-0c5b-7d2e-6a53-0a3f4f1d9a10" for index in range(4)]
DEVICES = "".join(
    f"{index}, {uuid}, 535.129.03, 32768, 0, [N/A], 7.0, Tesla V100-DGXS-32GB\n" for index, uuid in enumerate(UUIDS)
)


def put_programs(folder: Path) -> None:
    """Stand-ins of nvidia-smi and of the toolkit's hook, and what they say: four GPUs, on which nothing computes."""
    for program in STANDINS.glob("nvidia-*"):
        shutil.copy2(program, folder)
    (folder / "devices.csv").write_text(DEVICES)
    (folder / "processes.csv").write_text("")


def created_at_once(specs: Sequence[ClusterSpec], providers: Mapping[str, Provider]) -> list[object]:
    """What came of each: its nodes, or the error. All choose before the first one has a container."""
    together = threading.Barrier(len(specs))

    def create(spec: ClusterSpec) -> object:
        plan = providers[spec.name].plan(spec)
        together.wait(timeout=300)
        try:
            return providers[spec.name].create(plan)
        except HvdcloudError as error:
            return error

    with ThreadPoolExecutor(len(specs)) as pool:
        return list(pool.map(create, specs))
