"""A bucket with any number of objects, which exist only as the pages of its list: each is made when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import parse_qs

from tests.support.http_server import Asked, Reply, answering

PAGE = 1000
_GENERATION = 1_700_000_000_000_000


@dataclass
class GeneratedListing:
    """What was asked so far, and where."""

    url: str = ""
    pages: int = 0


@contextmanager
def generated_listing(count: int) -> Iterator[GeneratedListing]:
    """Serve the list of `count` objects of 20 kB below `set/`; to read one is refused."""
    bucket = GeneratedListing()

    def reply(asked: Asked) -> Reply:
        if not asked.path.endswith("/o"):
            return Reply(status=403)
        query = {key: values[0] for key, values in parse_qs(asked.query).items()}
        first = int(query.get("pageToken", "0"))
        last = min(count, first + PAGE)
        bucket.pages += 1
        # Not from dicts: that takes longer than all that the test is about.
        items = ",".join(map(_item, range(first, last)))
        following = f', "nextPageToken": "{last}"' if last < count else ""
        return Reply(f'{{"items": [{items}]{following}}}'.encode(), headers={"Content-Type": "application/json"})

    with answering(reply) as url:
        bucket.url = url
        yield bucket


def _item(number: int) -> str:
    name = f"set/{number // 10_000:03}/object-{number:07}"
    return f'{{"name": "{name}", "size": "20000", "crc32c": "AAAAAA==", "generation": "{_GENERATION + number}"}}'
