"""What `up` asks provider gce for: two N1 nodes with a T4 each."""

from __future__ import annotations

from datetime import datetime, timezone

from hvdcloud.cluster.model import ClusterSpec
from hvdcloud.providers.gce.settings import Settings

SPEC = ClusterSpec(
    name="digits",
    id="abcdef",
    owner="ada",
    nodes=2,
    image=f"us-central1-docker.pkg.dev/p/hvdcloud/digits@sha256:{'a' * 64}",
    bucket="gs://p-checkpoints/digits",
    authorized_key="ssh-ed25519 AAAAC3Nza laptop",
    created=datetime(2026, 11, 20, tzinfo=timezone.utc),
)
SETTINGS = Settings(
    project="p",
    machine_type="n1-standard-8",
    gpu_type="nvidia-tesla-t4",
    gpu_count=1,
    provisioning="standard",
    disk_gb=100,
    network=None,
    subnetwork=None,
    service_account="nodes@p.iam.gserviceaccount.com",
    ssh_source="198.51.100.7/32",
    max_run_seconds=3600,
    max_cost=None,
)
