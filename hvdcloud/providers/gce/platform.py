"""What Compute Engine means for a configuration: machines with GPUs, in zones, that cost money."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hvdcloud.checks import Finding, warning
from hvdcloud.errors import UsageError
from hvdcloud.providers.base import Gpu
from hvdcloud.providers.gce.capacity.offers import find_offers
from hvdcloud.providers.gce.money import catalog
from hvdcloud.providers.gce.provider import GceProvider
from hvdcloud.providers.gce.settings import Settings, kind_of, settings_of
from hvdcloud.providers.pricing import OffersResult

if TYPE_CHECKING:
    from hvdcloud.checks import Check
    from hvdcloud.cluster.model import ClusterSpec
    from hvdcloud.config.model import Config
    from hvdcloud.providers.gce.api.client import ComputeClient


class GcePlatform:
    """The platform `gce`."""

    place = "on Compute Engine"
    costs_money = True
    needs_registry = True
    processor: str | None = "x86_64"
    unpacks_zstd = True
    """Docker does from 23.0 on (https://github.com/moby/moby/releases/tag/v23.0.0); Container-Optimized OS has 27."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def connect(self, *, on_retry: Callable[[str], None]) -> GceProvider:
        """The provider in the project that the configuration or the credentials name. Nothing is asked yet."""
        config = self._config

        def client() -> ComputeClient:
            from hvdcloud.providers.gce.api.client import connect_client

            connected = connect_client(project=config.gce.project)
            connected.on_retry = on_retry
            return connected

        return GceProvider(config.gce, config.limits, client=client, elastic=config.run.elastic is not None)

    def checks(self, spec: ClusterSpec) -> Sequence[Check]:
        """Credentials, permissions, quotas, networks, bucket and registry."""
        from hvdcloud.providers.gce import doctor

        return list(doctor.checks(self._config, spec))

    def gpu(self) -> Gpu | None:
        """By the catalogue: attached, or part of the machine type."""
        kind = kind_of(self._settings, 0)
        try:
            name, _ = kind.gpus
            return Gpu(name=name, compute_capability=catalog.gpu(name).compute_capability) if name else None
        except UsageError:
            return None

    def machines(self) -> str | None:
        """`n1-standard-8 with 1 nvidia-tesla-t4, workers Spot`."""
        head, other = kind_of(self._settings, 0), kind_of(self._settings, 1)
        if self._config.nodes == 1 or head == other:
            return str(head)
        return f"{head}, workers Spot"

    def device_mismatch(self) -> Finding | None:
        """By image.device and the nodes' GPU."""
        device, gpu = self._config.image.device, self.gpu()
        if device == "cpu" and gpu is not None:
            message = "image.device is cpu: the nodes' GPUs would be paid for and not used"
            return warning(message, hint="image.device: cuda uses them, gce.gpu: null drops them")
        if device == "cuda" and gpu is None:
            message = "image.device is cuda, but the nodes have no GPU"
            return warning(message, hint="gce.gpu adds one, image.device: cpu is a small image")
        return None

    def offers(self, *, hours: float, gpu: str | None) -> OffersResult:
        """By the catalogue, the price table and, where it answers, the API."""
        mismatch = self.device_mismatch()
        notices = [mismatch.summary] if mismatch else []
        return find_offers(self._config, self._settings, hours=hours, gpu=gpu, notices=notices)

    @property
    def _settings(self) -> Settings:
        config = self._config
        elastic = config.run.elastic is not None
        return settings_of(config.gce, config.limits, project=config.gce.project or "", elastic=elastic)
