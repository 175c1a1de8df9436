"""A metadata server as nodes see it: it takes the guest attribute `hvdcloud/status`, and tells a VM its identity."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from tests.standins.compute import Emulator
from tests.standins.compute.auth import SCOPES
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


def identity_of_vm(
    emulator: Emulator, *, account: str, zone: str, scopes: Collection[str] = SCOPES
) -> Callable[[Asked], Reply]:
    """What a VM of the emulator's project reads about itself, with tokens of its service account."""

    def answer(asked: Asked) -> Reply:
        assert asked.headers["Metadata-Flavor"] == "Google"
        path = asked.path.removeprefix("/computeMetadata/v1/")
        if path == "instance/service-accounts/default/token":
            token, seconds = emulator.keys.issue(account, scopes=scopes)
            return Reply({"access_token": token, "expires_in": int(seconds), "token_type": "Bearer"})
        values = {"project/project-id": "test-project", "instance/zone": f"projects/1234/zones/{zone}"}
        return Reply(values[path].encode())

    return answer
