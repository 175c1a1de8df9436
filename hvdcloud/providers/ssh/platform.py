"""What containers on machines that are reached by SSH mean for a configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hvdcloud.checks import Finding, warning
from hvdcloud.providers.base import Gpu
from hvdcloud.providers.engine.provider import EnginePlatform
from hvdcloud.providers.engine.requests import limits
from hvdcloud.providers.ssh.provider import SshProvider

if TYPE_CHECKING:
    from hvdcloud.checks import Check
    from hvdcloud.cluster.model import ClusterSpec


class SshPlatform(EnginePlatform):
    """The platform `ssh`."""

    place = "on machines of yours"

    @property
    def needs_registry(self) -> bool:
        """Where an image repository is named, hosts pull from there; else the image is sent to them."""
        return self._config.image.repository is not None

    def connect(self, *, on_retry: Callable[[str], None]) -> SshProvider:
        """The provider; no host is asked yet."""
        found = self._config.limits
        return SshProvider(
            self._config.ssh, limits=limits(idle_seconds=found.idle, longest_seconds=found.max_run_duration)
        )

    def checks(self, spec: ClusterSpec) -> Sequence[Check]:
        """One for each host."""
        from hvdcloud.providers.ssh import doctor

        return doctor.checks(self._config, spec)

    def gpu(self) -> Gpu | None:
        """None: only the hosts know."""
        return None

    def machines(self) -> str | None:
        """The hosts, by name."""
        return ", ".join(host.host for host in self._config.ssh.hosts[: self._config.nodes])

    def device_mismatch(self) -> Finding | None:
        """GPUs that nodes would hold, while the image does not use them."""
        if self._config.image.device == "cpu" and any(host.gpus is not None for host in self._config.ssh.hosts):
            return warning(
                "image.device is cpu: the nodes would hold GPUs of the hosts and not use them",
                hint="image.device: cuda uses them; without gpus in ssh.hosts they are left alone",
            )
        return None
