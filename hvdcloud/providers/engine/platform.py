"""What containers on engines of the user's mean for a configuration: they cost nothing, and nodes have no identity."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hvdcloud.google.storage_token import ENDPOINT_VARIABLE, storage_token

if TYPE_CHECKING:
    from hvdcloud.config.model import Config
    from hvdcloud.providers.base import Gpu, Promise
    from hvdcloud.providers.pricing import OffersResult


class EnginePlatform:
    """The part of a `Platform` that does not depend on where the engines are."""

    place: str
    costs_money = False
    processor: str | None = None
    unpacks_zstd = False
    lends_credentials = True

    def __init__(self, config: Config) -> None:
        self._config = config

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

    def promise(self, index: int) -> Promise | None:
        """None: nobody says what a machine of the user's can do."""
        return None

    def offers(self, *, hours: float, gpu: str | None, image_problem: Callable[[Gpu], str | None]) -> OffersResult:
        """None, with a notice that says why."""
        from hvdcloud.providers.pricing import OffersResult

        notice = (
            f"provider {self._config.provider}: the nodes are containers {self.place} and cost nothing; "
            "--provider gce shows prices"
        )
        return OffersResult(nodes=self._config.nodes, hours=hours, prices_as_of=None, offers=(), notices=(notice,))
