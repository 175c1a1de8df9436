"""A metadata server as nodes see it: it takes the guest attribute `hvdcloud/status`, and tells a VM its identity."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.http_server import Asked, Reply, answering

ATTRIBUTE = "/computeMetadata/v1/instance/guest-attributes/hvdcloud/status"


class Metadata:
    """A metadata server that takes guest attributes.

    Args:
        answers: statuses of the first requests; 0 cuts the connection. After them, 200.
    """

    def __init__(self, answers: list[int]) -> None:
        self.answers = answers
        self.taken: list[dict[str, Any]] = []
        self.asked = 0
        self.url = ""


@contextmanager
def metadata_server(*answers: int, host: str = "127.0.0.1") -> Iterator[Metadata]:
    """A server that answers so; see Metadata."""
    metadata = Metadata(list(answers))

    def answer(asked: Asked) -> Reply | None:
        metadata.asked += 1
        status = metadata.answers.pop(0) if metadata.answers else 200
        if status == 0:
            return None
        if asked.method != "PUT" or asked.path != ATTRIBUTE or asked.headers["Metadata-Flavor"] != "Google":
            status = 404
        if status == 200:
            metadata.taken.append(json.loads(asked.body))
        return Reply(status=status)

    with answering(answer, host=host) as metadata.url:
        yield metadata
