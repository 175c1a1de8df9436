"""What containers on this machine's engine mean for a configuration: they cost nothing, and share what is here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hvdcloud.checks import Finding, failed, warning
from hvdcloud.providers.base import Gpu
from hvdcloud.providers.engine.provider import EnginePlatform
from hvdcloud.providers.engine.requests import limits
from hvdcloud.providers.local.provider import LocalProvider

if TYPE_CHECKING:
    from hvdcloud.checks import Check
    from hvdcloud.cluster.model import ClusterSpec


class LocalPlatform(EnginePlatform):
    """The platform `local`."""

    place = "on this machine"
    needs_registry = False

    def connect(self, *, on_retry: Callable[[str], None]) -> LocalProvider:
        """The provider on the engine of `DOCKER_HOST` or the current context. Raises NodeError: none answers."""
        from hvdcloud import engine

        ends = limits(idle_seconds=self._config.limits.idle)
        return LocalProvider(engine.connect(), limits=ends, gpus=self._config.local.gpus)

    def checks(self, spec: ClusterSpec) -> Sequence[Check]:
        """Room, GPUs, the bucket and folders with data."""
        from hvdcloud.providers.local import doctor

        return doctor.checks(self._config, spec)

    def gpu(self) -> Gpu | None:
        """The one of this machine with the lowest compute capability, if the nodes get any."""
        from hvdcloud.providers.local.gpus import least_capable

        return None if self._config.local.gpus is None else least_capable()

    def machines(self) -> str | None:
        """None: they are processes of this machine."""
        return None

    def device_mismatch(self) -> Finding | None:
        """By image.device and local.gpus."""
        device, wish = self._config.image.device, self._config.local.gpus
        if device == "cpu" and wish is not None:
            message = "image.device is cpu: the nodes would hold this machine's GPUs and not use them"
            return warning(message, hint="image.device: cuda uses them, local.gpus: null leaves them alone")
        if device == "cuda" and wish is None:
            message = "image.device is cuda, but the nodes have no GPU: local.gpus is null"
            return failed(message, hint="local.gpus: all gives them this machine's; image.device: cpu needs none")
        return None
