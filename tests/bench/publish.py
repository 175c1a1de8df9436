"""What every benchmark does with what it found."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.bench.workplace import HERE, REPOSITORY


def say(text: str) -> None:
    """Progress."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def publish(name: str, document: object, tables: str, *, folder: Path | None, complete: bool) -> None:
    """Write NAME.json and NAME.md, and print the tables.

    Args:
        document: for JSON.
        tables: Markdown.
        folder: where to, if the user said so.
        complete: whether it may replace the results that are committed.
    """
    folder = folder or (HERE / "results" if complete else REPOSITORY / ".cache" / "bench-results")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    (folder / f"{name}.md").write_text(tables)
    sys.stdout.write(tables)
    say(f"written to {folder}/{name}.json and {name}.md")
