"""What every benchmark does with what it found."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.bench.measure import BenchError

HERE = Path(__file__).resolve().parent
JOB = HERE / "job"
REPOSITORY = HERE.parents[1]


def say(text: str) -> None:
    """Progress."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


@contextmanager
def ends_in_words() -> Iterator[None]:
    """End the program with one line of text if the block fails or is interrupted.

    Raises SystemExit: with 1 or, after Ctrl-C, 130.
    """
    try:
        yield
    except (BenchError, AssertionError) as error:
        say(f"bench: {error}")
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        say("bench: interrupted; everything that it made is removed")
        raise SystemExit(130) from None


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


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """As Markdown; the first column is text, the others are numbers."""
    lines = [headers, ["---", *["---:"] * (len(headers) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
