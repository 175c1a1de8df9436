"""The health of a node's GPUs, as nvidia-smi tells it. Of real ones an H100's was asked (driver 580.159.04)."""

from __future__ import annotations

import contextlib
from typing import Any

from hvdcloud.node.monitor.nvidia_smi import NoAnswerError, NvidiaSmi

SECONDS = 20.0
FIELDS = {
    "index": "index",
    "name": "name",
    "ecc_errors": "ecc.errors.uncorrected.volatile.total",
    "retirement_pending": "retired_pages.pending",
    "throttle_reasons": "clocks_throttle_reasons.active",
    "link_width": "pcie.link.width.current",
    "link_width_most": "pcie.link.width.max",
    "temperature": "temperature.gpu",
}
"""Our names, and nvidia-smi's."""
_REMAP = ("index", "remapped_rows.failure")
"""Asked apart: a GPU older than Ampere has no rows to remap, and an older driver refuses the whole question."""


def health() -> dict[str, Any]:
    """`gpus`: one object a GPU, with what it knows of itself; `trouble`: why there is none, where nvidia-smi fails."""
    nvidia_smi = NvidiaSmi()
    if nvidia_smi.program is None:
        return {"gpus": []}
    try:
        answer = nvidia_smi.ask([*FIELDS.values()], seconds=SECONDS)
        if answer.returncode:
            said = (answer.stdout.strip() or answer.stderr.strip()).rpartition("\n")[2]
            return {"gpus": [], "trouble": f"nvidia-smi failed: {said or f'exit code {answer.returncode}'}"}
        gpus = parse(answer.stdout)
    except NoAnswerError as error:
        return {"gpus": [], "trouble": str(error)}
    failed: set[str] = set()
    with contextlib.suppress(NoAnswerError):
        remapped = nvidia_smi.ask(_REMAP, seconds=SECONDS)
        if not remapped.returncode:
            failed = {row[0] for row in _rows(remapped.stdout, len(_REMAP)) if row[1].lower() in ("1", "yes")}
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
        for name, text in list(zip(FIELDS, row, strict=True))[2:]:
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
