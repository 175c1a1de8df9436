"""Which GPUs a compiled file holds code for: NVIDIA's fat binaries, as nvcc puts them into .nv_fatbin.

A fat binary is a header (magic, version 1, size of the header, size of what follows) and entries, each with a header of
its own: kind (1 PTX, 2 compiled), version, size of the header, size of what follows, …, at byte 28 the architecture.
`cuobjdump --list-elf --list-ptx` says the same.
"""

from __future__ import annotations

import struct
from pathlib import Path

_MAGIC = struct.pack("<IH", 0xBA55ED50, 1)
_PTX, _COMPILED = 1, 2


def capabilities(file: Path) -> tuple[set[str], set[str]]:
    """Compute capabilities that there is compiled code for, and those that there is PTX for: {"7.5", "8.0"}."""
    content = file.read_bytes()
    found: dict[int, set[str]] = {_PTX: set(), _COMPILED: set()}
    start = content.find(_MAGIC)
    while start >= 0:
        header, size = struct.unpack_from("<HQ", content, start + 6)
        entry, end = start + header, start + header + size
        while entry < end:
            kind, _, entry_header, entry_size = struct.unpack_from("<HHIQ", content, entry)
            (architecture,) = struct.unpack_from("<I", content, entry + 28)
            found[kind].add(f"{architecture // 10}.{architecture % 10}")
            entry += entry_header + entry_size
        start = content.find(_MAGIC, end)
    return found[_COMPILED], found[_PTX]
