"""What containers on this machine's engine mean for a configuration: they cost nothing, and share what is here."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hvdcloud.google.storage_token import ENDPOINT_VARIABLE, storage_token
from hvdcloud.providers.base import Gpu, Problem
from hvdcloud.providers.local.provider import LocalProvider
from hvdcloud.providers.pricing import OffersResult

if TYPE_CHECKING:
    from hvdcloud.checks import Check
    from hvdcloud.cluster.model import ClusterSpec
    from hvdcloud.config.model import Config


class LocalPlatform:
    """The platform `local`."""

    place = "on this machine"
    costs_money = False
    needs_registry = False
    processor: str | None = None
    lends_credentials = True

    def __init__(self, config: Config) -> None:
        self._config = config

    def connect(self, *, on_retry: Callable[[str], None]) -> LocalProvider:
        """The provider on the engine of `DOCKER_HOST` or the current context. Raises NodeError: none answers."""
        from hvdcloud import engine

        return LocalProvider(engine.connect(), idle_seconds=self._config.limits.idle)

    def checks(self, spec: ClusterSpec) -> Sequence[Check]:
        """Names, room and the bucket."""
        from hvdcloud.providers.local import doctor

        return doctor.checks(self._config, spec)

    def gpu(self, index: int) -> Gpu | None:
        """None: containers get no GPU."""
        return None

    def machines(self) -> str | None:
        """None: they are processes of this machine."""
        return None

    def device_mismatch(self) -> Problem | None:
        """None: nothing is paid for."""
        return None

    def storage_credentials(
        self, bucket: str, *, endpoint: str | None, writes: str, reads: Sequence[str] = (), data: Sequence[str] = ()
    ) -> str | None:
        """A token for these folders that ends within an hour. It travels over the pinned connection into a file of mode
        0600, which is deleted when the run's checkpoints are complete."""
        remote = [source for source in data if source.startswith("gs://")]
        if not self.lends_token(bucket, *remote, endpoint=endpoint):
            return None
        own = bucket if bucket.startswith("gs://") else None
        return storage_token(own, writes=writes, reads=reads, data=remote)

    def lends_token(self, *buckets: str, endpoint: str | None) -> bool:
        """Of Cloud Storage, or of a server in its place that has a token service too."""
        remote = any(url.startswith("gs://") for url in buckets)
        return remote and (endpoint is None or ENDPOINT_VARIABLE in os.environ)

    def bucket_dollars_per_month(self, size_bytes: int) -> float | None:
        """None: the bucket is a folder, or not of this provider."""
        return None

    def offers(self, *, hours: float, gpu: str | None, image_problem: Callable[[Gpu], str | None]) -> OffersResult:
        """None, with a notice that says why."""
        notice = (
            "provider local: the nodes are containers on this machine and cost nothing; --provider gce shows prices"
        )
        return OffersResult(nodes=self._config.nodes, hours=hours, prices_as_of=None, offers=(), notices=(notice,))
