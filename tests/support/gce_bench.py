"""An emulator of Compute Engine that keeps records, and a provider in front of it."""

from __future__ import annotations

import secrets
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any
from urllib.parse import parse_qs, urlsplit

from google.oauth2 import service_account

from hvdcloud.cluster.model import ClusterSpec, Node
from hvdcloud.config.gce import GceConfig, GpuConfig, SshConfig
from hvdcloud.config.model import LimitsConfig
from hvdcloud.google.credentials import SCOPE
from hvdcloud.providers.base import NodeProgress
from hvdcloud.providers.gce.api.client import ComputeClient
from hvdcloud.providers.gce.provider import GceProvider
from hvdcloud.remote.keys import new_key_pair
from tests.standins.compute import Emulator
from tests.support.harness import DEADLINE, until

BULK_INSERT = "compute.instances.bulkInsert"

DELETE = "compute.instances.delete"

A, B, W = "us-central1-a", "us-central1-b", "us-west1-a"


def interrupt_when(condition: Callable[[], object]) -> threading.Thread:
    """Ctrl-C, a signal, which also wakes the main thread from a wait, once something is so."""
    main = threading.main_thread().ident or 0

    def watch() -> None:
        until(condition, what="the moment of Ctrl-C", pause=0.002)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


class Bench:
    """An emulator, a provider that uses it, and what was said."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator
        self.said: list[tuple[str, str]] = []
        self.retry_seconds = 4.0
        self.provider = self.another()

    def another(self, **changes: Any) -> GceProvider:
        """A provider as on another laptop, perhaps with other settings."""
        settings: dict[str, Any] = {
            "zones": [A, B, W],
            "gpu": GpuConfig(type="nvidia-tesla-t4"),
            "service_account": "default",
            "ssh": SshConfig(source="198.51.100.7/32"),
            **changes,
        }
        limits, elastic = settings.pop("limits", LimitsConfig()), settings.pop("elastic", False)
        return GceProvider(GceConfig(**settings), limits, client=self.client, elastic=elastic)

    def client(self) -> ComputeClient:
        credentials = service_account.Credentials.from_service_account_info(
            self.emulator.keys.credentials(self.emulator.url), scopes=[SCOPE]
        )
        return ComputeClient(
            project="test-project",
            credentials=credentials,
            endpoint=self.emulator.url,
            retry_seconds=self.retry_seconds,
        )

    def spec(self, *, nodes: int = 2, name: str | None = None) -> ClusterSpec:
        return ClusterSpec(
            name=name or f"t-{secrets.token_hex(3)}",
            id=secrets.token_hex(3),
            owner="tester",
            nodes=nodes,
            image=f"us-central1-docker.pkg.dev/test-project/hvdcloud/t@sha256:{'0' * 64}",
            bucket="gs://bucket/t",
            authorized_key=new_key_pair("test").public,
            created=datetime.now(timezone.utc),
        )

    def say(self, progress: NodeProgress) -> None:
        self.said.append((progress.object, progress.step))

    def create(self, spec: ClusterSpec, provider: GceProvider | None = None) -> list[Node]:
        provider = provider or self.provider
        return list(provider.create(provider.plan(spec), on_progress=self.say))

    def wait(self, nodes: list[Node], *, seconds: float = DEADLINE) -> list[Node]:
        deadline = time.monotonic() + seconds
        return list(self.provider.wait_ready(nodes, deadline=deadline, on_progress=self.say))

    def fail(self, action: dict[str, Any], **where: Any) -> None:
        self.emulator.faults.add(action, **where)

    def calls(self) -> Counter[str]:
        """How often each method was called. The parts of a batch are not calls of their own."""
        return Counter(entry.method for entry in self.emulator.log.entries() if not entry.part)

    def zones_asked(self) -> list[str]:
        """The zones of bulkInserts, in order; one that was sent again counts once."""
        asked: dict[str, str] = {}
        for entry in self.emulator.log.entries():
            if entry.method == BULK_INSERT and entry.http == "POST":
                url = urlsplit(entry.target)
                asked[parse_qs(url.query)["requestId"][0]] = url.path.partition("/zones/")[2].partition("/")[0]
        return list(asked.values())

    @property
    def left(self) -> list[str]:
        return self.emulator.state.left()
