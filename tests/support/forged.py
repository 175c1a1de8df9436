"""Other bytes with the same size and CRC32C, which anyone can make."""

from __future__ import annotations

import google_crc32c


def same_crc32c(data: bytes, start: bytes) -> bytes:
    """`start` and four bytes more, of the size and CRC32C of `data`."""
    assert len(start) == len(data) - 4

    def value(end: int) -> int:
        return int(google_crc32c.value(start + end.to_bytes(4, "big")))

    # A CRC is linear: each bit of the end changes the same bits of the result, whatever the others are.
    nothing, end = value(0), 0
    wanted = google_crc32c.value(data) ^ nothing
    rows = [(value(1 << bit) ^ nothing, 1 << bit) for bit in range(32)]
    for bit in range(32):
        here = next((row for row in rows if row[0] >> bit & 1), None)
        if here is None:
            continue
        rows = [(row[0] ^ here[0], row[1] ^ here[1]) if row[0] >> bit & 1 else row for row in rows if row is not here]
        if wanted >> bit & 1:
            wanted, end = wanted ^ here[0], end ^ here[1]
    assert wanted == 0
    return start + end.to_bytes(4, "big")
