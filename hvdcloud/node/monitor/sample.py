"""What a node's machine does at one moment: processor, memory, network of the mesh, GPUs.

A sample is one JSON object: `t` (seconds since the epoch), `cpu` (per cent of all cores), `memory` and `memory_total`
(bytes), `received` and `sent` (bytes per second), `gpus` (where there are any). What could not be read is left out.
Containers of one machine all see the whole machine.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import psutil

from hvdcloud.node import paths
from hvdcloud.node.mesh.nodes import mesh_interface
from hvdcloud.node.monitor.nvidia_smi import NoAnswerError, NvidiaSmi

Sample = dict[str, Any]

GPU_SECONDS = 4.0
"""How long nvidia-smi may take."""
_FIRST_PAUSE, _LONGEST_PAUSE = 15.0, 300.0
_GPU_FIELDS = {
    "index": "index",
    "utilization": "utilization.gpu",
    "memory": "memory.used",
    "memory_total": "memory.total",
    "temperature": "temperature.gpu",
    "power": "power.draw",
}
"""Our names, and nvidia-smi's."""
_MIB = 1 << 20


def parse_gpus(output: str) -> list[dict[str, Any]]:
    """nvidia-smi's answer: a line per GPU, numbers without units, memory in MiB. What a GPU does not measure is
    `[N/A]` or `[Not Supported]`, and may be `[Unknown Error]`: that is left out."""
    gpus = []
    for line in output.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != len(_GPU_FIELDS) or not fields[0].isdigit():
            continue
        gpu: dict[str, Any] = {"index": int(fields[0])}
        for name, text in list(zip(_GPU_FIELDS, fields, strict=True))[1:]:
            with contextlib.suppress(ValueError):
                value = float(text)
                gpu[name] = int(value) * _MIB if name in ("memory", "memory_total") else round(value, 1)
        gpus.append(gpu)
    return gpus


class GpuReader:
    """Reads the GPUs' values from nvidia-smi.

    Args:
        program: its path; None: where this image has it.
        seconds: how long it may take.
    """

    def __init__(self, program: str | None = None, *, seconds: float = GPU_SECONDS) -> None:
        self._nvidia_smi = NvidiaSmi(program)
        self._seconds = seconds
        self._again_at = 0.0
        self._pause = _FIRST_PAUSE
        self.trouble = ""
        """Why there is no answer; empty while there is one, or nothing to ask."""

    def read(self) -> list[dict[str, Any]]:
        """One object a GPU; none where nvidia-smi is missing or does not answer."""
        if self._nvidia_smi.program is None or time.monotonic() < self._again_at:
            return []
        try:
            answer = self._nvidia_smi.ask([*_GPU_FIELDS.values()], seconds=self._seconds)
        except NoAnswerError as error:
            return self._give_up(str(error))
        gpus = parse_gpus(answer.stdout)
        if not gpus:
            return self._give_up(f"nvidia-smi said nothing of any GPU (exit code {answer.returncode})")
        self._pause, self.trouble = _FIRST_PAUSE, ""
        return gpus

    def _give_up(self, why: str) -> list[dict[str, Any]]:
        self.trouble = why
        self._again_at = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        return []


class Sensors:
    """Reads samples; rates are since the reading before.

    Args:
        gpus: reads the GPUs.
        interface: whose bytes are counted; None: the one that leads to the other nodes.
    """

    def __init__(self, gpus: GpuReader | None = None, *, interface: str | None = None) -> None:
        self._gpus = gpus if gpus is not None else GpuReader()
        self._interface = interface
        self._before: tuple[float, Any] | None = None

    def read(self) -> Sample:
        """A sample of now; its rates are missing the first time."""
        sample: Sample = {"t": round(time.time(), 2)}
        if self._interface is None:
            self._interface = mesh_interface()
        cpu, now = psutil.cpu_percent(), time.monotonic()
        network = psutil.net_io_counters(pernic=True).get(self._interface)
        if self._before is not None:
            sample["cpu"] = cpu
            if network is not None and self._before[1] is not None:
                seconds = now - self._before[0]
                sample["received"] = round((network.bytes_recv - self._before[1].bytes_recv) / seconds)
                sample["sent"] = round((network.bytes_sent - self._before[1].bytes_sent) / seconds)
        self._before = now, network
        memory = psutil.virtual_memory()
        sample["memory"], sample["memory_total"] = memory.total - memory.available, memory.total
        if gpus := self._gpus.read():
            sample["gpus"] = gpus
        elif self._gpus.trouble:
            sample["trouble"] = self._gpus.trouble
        return sample


def samples_file(run: str) -> Path:
    """Of one run on this node: a JSON object per line."""
    return paths.run_dir(run) / "samples.jsonl"


def newest_file(run: str) -> Path:
    """The newest sample of one run on this node."""
    return paths.run_dir(run) / "sample.json"
