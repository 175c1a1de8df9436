"""What a node's machine does at one moment: processor, memory, network of the mesh, GPUs.

A sample is one JSON object: `t` (seconds since the epoch), `cpu` (per cent of all cores), `memory` and `memory_total`
(bytes), `received` and `sent` (bytes per second), `gpus` (where there are any). What could not be read is left out.
Containers of one machine all see the whole machine.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil

from hvdcloud.node import machine, paths
from hvdcloud.node.mesh.nodes import mesh_interface

Sample = dict[str, Any]

GPU_SECONDS = 4.0
"""How long nvidia-smi may take."""
_PATH = "/usr/local/nvidia/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
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
    """Reads the GPUs' values from nvidia-smi, which hangs when a GPU has fallen off its bus, and then does not even end
    when it is killed. `seconds`: how long it may take.
    """

    def __init__(self, *, seconds: float = GPU_SECONDS) -> None:
        image = machine.image_environment()
        path = ":".join(filter(None, [image.get("PATH"), _PATH]))
        # None: this image has none.
        self._program = shutil.which("nvidia-smi", path=path)
        # Without the mark of the run, by which its processes are found and ended.
        self._environment = {"PATH": _PATH, "LANG": "C", "LD_LIBRARY_PATH": image.get("LD_LIBRARY_PATH", "")}
        self._seconds = seconds
        self._process: subprocess.Popen[str] | None = None
        self.trouble = ""
        """Why there is no answer; empty while there is one, or nothing to ask."""

    def read(self) -> list[dict[str, Any]]:
        """One object a GPU; none where nvidia-smi is missing, or does not answer."""
        if self._program is None:
            return []
        self.trouble = f"nvidia-smi did not answer within {self._seconds:g} s"
        if self._process is not None and self._process.poll() is None:
            return []
        try:
            process = self._process = subprocess.Popen(
                [self._program, f"--query-gpu={','.join(_GPU_FIELDS.values())}", "--format=csv,noheader,nounits"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                errors="replace",
                env=self._environment,
                start_new_session=True,
            )
            output, _ = process.communicate(timeout=self._seconds)
        except OSError as error:
            self.trouble = f"nvidia-smi cannot be started: {error.strerror}"
            return []
        except subprocess.TimeoutExpired:
            # Nothing waits for its end, while it is stuck in the driver.
            process.kill()
            if process.stdout is not None:
                process.stdout.close()
            return []
        gpus = parse_gpus(output)
        self.trouble = "" if gpus else f"nvidia-smi said nothing of any GPU (exit code {process.returncode})"
        return gpus


class Sensors:
    """Reads samples; rates are since the reading before, and the network is that of the other nodes."""

    def __init__(self, gpus: GpuReader) -> None:
        self._gpus = gpus
        self._interface = mesh_interface()
        self._before: tuple[float, Any] | None = None

    def read(self) -> Sample:
        """A sample of now; its rates are missing the first time."""
        sample: Sample = {"t": round(time.time(), 2)}
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
