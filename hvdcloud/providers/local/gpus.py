"""The GPUs of this machine, as its nvidia-smi and its Docker engine describe them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache

from hvdcloud.errors import NodeError, UsageError
from hvdcloud.providers.base import Gpu
from hvdcloud.providers.engine import gpus
from hvdcloud.visible import words

SECONDS = 20.0
"""How long nvidia-smi may take: several where no program keeps the driver loaded; it hangs when a GPU fell off its
bus."""
_SYSTEM_PATH = ":/usr/sbin:/usr/bin:/sbin:/bin:/usr/lib/wsl/lib"


def ask_this_machine() -> gpus.Gpus:
    """Its GPUs and what computes on them.

    Raises:
        UsageError: it has no NVIDIA driver.  NodeError: the driver does not answer.
    """
    return gpus.Gpus(
        devices=gpus.parse_devices(_asked(gpus.DEVICES_QUERY)),
        processes=gpus.parse_processes(_asked(gpus.PROCESSES_QUERY)),
    )


def hook_is_here() -> bool:
    """Whether NVIDIA's container toolkit is on this machine."""
    return _found(gpus.TOOLKIT_HOOK) is not None


def least_capable() -> Gpu | None:
    """The GPU of this machine with the lowest compute capability; None: it has none, or that cannot be found out."""
    program = _found("nvidia-smi")
    return None if program is None else _least_capable(program)


@cache
def _least_capable(program: str) -> Gpu | None:
    try:
        found = gpus.parse_capabilities(_run(program, gpus.CAPABILITIES_QUERY))
    except NodeError:
        # Callers that need the GPUs themselves ask again, and say what is wrong; older drivers do not know the field.
        return None
    least = min(found, key=lambda capability: tuple(map(int, capability.split("."))), default=None)
    return None if least is None else Gpu(name=found[least], compute_capability=least)


def _asked(query: Sequence[str]) -> str:
    program = _found(query[0])
    if program is None:
        raise UsageError(
            "this machine has no NVIDIA driver (there is no nvidia-smi), so nodes get no GPU", hint=gpus.CPU_HINT
        )
    return _run(program, query)


def _run(program: str, query: Sequence[str]) -> str:
    """Raises NodeError: it fails, or does not answer."""
    try:
        done = subprocess.run(
            [program, *query[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
    except OSError as error:
        raise NodeError(f"{program} cannot be started: {error.strerror}", hint="nvidia-smi shows why") from error
    except subprocess.TimeoutExpired:
        raise NodeError(
            f"nvidia-smi did not answer within {SECONDS:g} s; a GPU may have failed",
            hint="sudo dmesg | grep -i nvrm shows what the driver says",
        ) from None
    if done.returncode != 0:
        said = words((done.stdout + done.stderr).strip() or f"exit code {done.returncode}")
        raise NodeError(f"nvidia-smi failed: {said}", hint="nvidia-smi shows all of it")
    return done.stdout


def _found(program: str) -> str | None:
    return shutil.which(program, path=os.environ.get("PATH", "") + _SYSTEM_PATH)
