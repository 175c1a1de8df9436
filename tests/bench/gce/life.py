"""`python -m tests.bench.gce.life ENDPOINT NODES`: provider gce's whole `up` and `down`, with a mark after each step.

No node ever answers over SSH here, so what `hvdcloud up` does on the nodes themselves is not part of this.
"""

from __future__ import annotations

import importlib
import secrets
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path

from hvdcloud.cluster.journal import Journal
from hvdcloud.cluster.model import ClusterSpec
from hvdcloud.config.gce import GceConfig, SshConfig
from hvdcloud.config.model import LimitsConfig
from hvdcloud.providers.gce.api.client import connect_client
from hvdcloud.providers.gce.provider import GceProvider
from hvdcloud.remote.keys import new_key_pair
from tests.bench.gce import PROJECT, ZONE, mark

READY_SECONDS = 120.0


def main(endpoint: str, nodes: int) -> None:
    importlib.import_module("google.cloud.compute_v1")  # Its time is shown on its own.
    name = f"bench-{secrets.token_hex(3)}"
    spec = ClusterSpec(
        name=name,
        id=secrets.token_hex(3),
        owner="bench",
        nodes=nodes,
        image=f"us-central1-docker.pkg.dev/{PROJECT}/hvdcloud/bench@sha256:{'0' * 64}",
        bucket="gs://bucket/bench",
        authorized_key=new_key_pair("bench").public,
        created=datetime.now(timezone.utc),
    )
    config = GceConfig(zones=[ZONE], service_account="default", ssh=SshConfig(source="198.51.100.7/32"))
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "journal.jsonl")
        mark("imported")
        provider = _provider(config, endpoint)
        assert provider.cluster(name) is None
        mark("looked")
        plan = provider.plan(spec)
        mark("planned")
        created = provider.create(plan, journal=journal)
        mark("created")
        ready = provider.wait_ready(created, deadline=time.monotonic() + READY_SECONDS)
        mark("up")
        assert len({node.host_key for node in ready}) == nodes
        # Another provider, as in another command: what `up` had found out is not there any more.
        provider = _provider(config, endpoint)
        mark("down-starts")
        found = provider.cluster(name)
        assert found is not None
        assert found.whole
        mark("found")
        assert not provider.destroy(name)
        mark("down")


def _provider(config: GceConfig, endpoint: str) -> GceProvider:
    return GceProvider(config, LimitsConfig(), client=lambda: connect_client(project=PROJECT, endpoint=endpoint))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
