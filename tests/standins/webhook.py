"""A server that gets notices of runs."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.standins.http_server import own_certificate
from tests.support.http_server import Asked, Reply, answering

TOKEN = "T0PSECRET-a1b2c3"
"""In the path of every address, as in those of Slack: who knows it may send."""


@dataclass
class Webhook:
    """What it answers, and what it got."""

    certificate: Path
    """Its own, which nobody trusts who is not told to."""
    url: str = ""
    answers: list[int] = field(default_factory=list)
    """The next ones: a status each. Then 200."""
    got: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)
    """Path, headers in lower case and body of each request."""

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The bodies."""
        return [body for _, _, body in self.got]


@contextmanager
def webhook() -> Iterator[Webhook]:
    """A server with TLS on a loopback port for the block."""
    with tempfile.TemporaryDirectory() as folder:
        certificate, tls = own_certificate(Path(folder))
        hook = Webhook(certificate=certificate)

        def answer(asked: Asked) -> Reply:
            headers = {name.lower(): value for name, value in asked.headers.items()}
            hook.got.append((asked.path, headers, json.loads(asked.body)))
            return Reply(status=hook.answers.pop(0) if hook.answers else 200)

        with answering(answer, tls=tls) as url:
            hook.url = f"{url}/services/{TOKEN}"
            yield hook
