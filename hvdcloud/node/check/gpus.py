"""The health of a node's GPUs, as nvidia-smi tells it. Of real ones an H100's was asked (driver 580.159.04)."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

from hvdcloud.node import machine

SECONDS = 20.0
FIELDS = (
    ("index", "index"),
    ("name", "name"),
    ("ecc_errors", "ecc.errors.uncorrected.volatile.total"),
    ("retirement_pending", "retired_pages.pending"),
    ("throttle_reasons", "clocks_throttle_reasons.active"),
    ("link_width", "pcie.link.width.current"),
    ("link_width_most", "pcie.link.width.max"),
    ("temperature", "temperature.gpu"),
)
"""Our names, and those of `nvidia-smi --query-gpu` (`nvidia-smi --help-query-gpu`)."""
_REMAP = ("index", "remapped_rows.failure")
"""Asked apart: a GPU older than Ampere has no rows to remap, and an older driver refuses the whole question."""
_DEFAULT_PATH = "/usr/local/nvidia/bin:/opt/hvdcloud/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def health() -> dict[str, Any]:
    """`gpus`: one object a GPU, with what it knows of itself; `trouble`: why there is none, where nvidia-smi fails."""
    path = ":".join(filter(None, [machine.image_environment().get("PATH"), _DEFAULT_PATH]))
    program = shutil.which("nvidia-smi", path=path)
    if program is None:
        return {"gpus": []}
    output, trouble = _ask(program, [field for _, field in FIELDS])
    if trouble:
        return {"gpus": [], "trouble": trouble}
    gpus = parse(output)
    remapped, _ = _ask(program, _REMAP)
    failed = {row[0] for row in _rows(remapped, len(_REMAP)) if row[1].lower() in ("1", "yes")}
    for gpu in gpus:
        if str(gpu["index"]) in failed:
            gpu["remapping_failed"] = True
    return {"gpus": gpus}


def parse(output: str) -> list[dict[str, Any]]:
    """nvidia-smi's answer to FIELDS, without what a GPU does not tell (`[N/A]`, `[Not Supported]`)."""
    gpus = []
    for row in _rows(output, len(FIELDS)):
        if not row[0].isdigit():
            continue
        gpu: dict[str, Any] = {"index": int(row[0]), "name": row[1]}
        for (name, _), text in list(zip(FIELDS, row, strict=True))[2:]:
            if name == "retirement_pending":
                if text.lower() in ("yes", "no"):
                    gpu[name] = text.lower() == "yes"
                continue
            with contextlib.suppress(ValueError):
                gpu[name] = int(text, 16) if text.startswith("0x") else int(text)
        gpus.append(gpu)
    return gpus


def _rows(output: str, count: int) -> list[list[str]]:
    rows = [[field.strip() for field in line.split(",")] for line in output.splitlines()]
    return [row for row in rows if len(row) == count]


def _ask(program: str, fields: Sequence[str]) -> tuple[str, str]:
    """The answer, and why there is none."""
    environment = {"PATH": _DEFAULT_PATH, "LANG": "C"}
    if libraries := machine.image_environment().get("LD_LIBRARY_PATH"):
        environment["LD_LIBRARY_PATH"] = libraries
    argv = [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=SECONDS,
            env=environment, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "", f"nvidia-smi did not answer within {SECONDS:g} s"
    except OSError as error:
        return "", f"nvidia-smi cannot be started: {error.strerror}"
    if done.returncode:
        said = (done.stdout.strip() or done.stderr.strip()).rpartition("\n")[2]
        return "", f"nvidia-smi failed: {said or f'exit code {done.returncode}'}"
    return done.stdout, ""
