"""Times, sizes, numbers and money as people read them."""

from __future__ import annotations

from collections.abc import Sequence


def seconds(value: float) -> str:
    """`3.2 s`, `4 min 10 s`, `2 h 05 min`."""
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def size(count: float) -> str:
    """Bytes as `512 B`, `1.5 MB`, in powers of ten."""
    units = ["B", "kB", "MB", "GB"]
    while count >= 1000 and len(units) > 1:
        count /= 1000
        units.pop(0)
    return f"{count:.0f} B" if units[0] == "B" else f"{count:.1f} {units[0]}"


def counted(number: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def some(names: Sequence[str], *, most: int = 8) -> str:
    """`a, b`; of many, the first ones: `a, b and 4 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def kept_files(files: int, others: int, *, noun: str = "checkpoint") -> str:
    """`3 checkpoints and 1 other file`; `others`: those of `files` that are none."""
    if files == others:
        return counted(others, "file") if files else "no checkpoints"
    also = f" and {counted(others, 'other file')}" if others else ""
    return counted(files - others, noun) + also


def dollars(value: float | None) -> str:
    """To the cent: `$0.31`, `$1,204.00`; what rounds to nothing and is not nothing is `less than $0.01`; None: `?`."""
    if value is None:
        return "?"
    return "less than $0.01" if 0 < value < 0.005 else f"${value:,.2f}"
