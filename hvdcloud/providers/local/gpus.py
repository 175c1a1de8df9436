"""The GPUs of this machine, which is asked as a host that is reached by SSH is."""

from __future__ import annotations

import subprocess
from functools import cache

from hvdcloud.errors import NodeError
from hvdcloud.providers.base import Gpu
from hvdcloud.providers.engine import facts

PLACE = "this machine"


def ask_this_machine() -> facts.Facts:
    """What it says of itself. Raises NodeError: it does not answer; a GPU may have failed."""
    try:
        done = subprocess.run(
            ["/bin/sh"],
            cwd="/",
            input=facts.script(ask_gpus=True),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=4 * facts.GPU_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        hint = "sudo dmesg | grep -i nvrm shows what the driver says"
        raise NodeError("nvidia-smi did not answer; a GPU may have failed", hint=hint) from None
    return facts.parse(done.stdout, address=None)


@cache
def least_capable() -> Gpu | None:
    """The GPU of this machine with the lowest compute capability; None: it has none, or that cannot be found out."""
    try:
        found = ask_this_machine().gpus
    except NodeError:
        # Callers that need the GPUs themselves ask again, and say what is wrong.
        return None
    least = min(found, key=lambda gpu: [int(part) for part in gpu.capability.split(".")], default=None)
    return None if least is None else Gpu(name=least.name, compute_capability=least.capability)
