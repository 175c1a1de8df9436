"""What is checked before VMs are made. Nothing is changed by it.

What the account may do in the project is not asked for: IAM's answer leaves out grants with a condition and new ones,
and a call that is refused names the permission.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from hvdcloud.checks import Check, Finding, NoAnswerError, Once, fine
from hvdcloud.errors import NodeError
from hvdcloud.providers.gce import ssh_access
from hvdcloud.providers.gce.capacity.places import check_settings, find_zones
from hvdcloud.providers.gce.doctor import account
from hvdcloud.providers.gce.doctor.buckets import check_bucket, check_data
from hvdcloud.providers.gce.settings import Settings, kind_of, settings_of
from hvdcloud.units import counted, some

if TYPE_CHECKING:
    from hvdcloud.cluster.model import ClusterSpec
    from hvdcloud.config.model import Config


def _check(name: str, run: Callable[[], Finding], *, see: tuple[str, ...] = ()) -> Check:
    """A check that asks Google, whose silence proves nothing: planning and making nodes ask it again, and longer."""

    def asked() -> Finding:
        try:
            return run()
        except NodeError as error:
            raise NoAnswerError(error.message, hint=error.hint, details=error.details) from error

    return Check(name=name, run=asked, see=see)


class Checks:
    """Whether there is an account, whether and where the nodes can be made, the bucket and the data sets."""

    def __init__(self, config: Config, spec: ClusterSpec) -> None:
        self._config = config.gce
        self._limits = config.limits
        self._data = {name: each for name, each in config.data.items() if each.source.startswith("gs://")}
        self._spec = spec
        self._today = datetime.now(timezone.utc).date()
        self._login = Once(lambda: account.log_in(config.gce))

    def all(self) -> Iterator[Check]:
        """Each check, which asks nothing before it runs."""
        login = ("credentials",)
        yield _check("credentials", lambda: account.check_credentials(self._login))
        yield _check("service account", lambda: account.check_service_account(self._settings()))
        yield _check("machine", self._machine)
        yield _check("zones", self._zones, see=("machine", *login))
        yield _check("SSH", self._ssh)
        yield _check("bucket", lambda: check_bucket(self._login(), self._spec.bucket), see=login)
        if self._data:
            yield _check("data", lambda: check_data(self._login(), self._data), see=login)

    def _machine(self) -> Finding:
        settings = self._settings()
        check_settings(self._spec, settings, today=self._today)
        return fine(str(kind_of(settings, self._spec.nodes - 1)))

    def _zones(self) -> Finding:
        login = self._login()
        settings, zones = self._settings(login.project), self._config.zones
        found = find_zones(login.client(), self._spec, settings, zones=zones, today=self._today)
        return fine(f"quota for {counted(self._spec.nodes, 'node')} in {some(found, most=4)}")

    def _ssh(self) -> Finding:
        if self._config.ssh.source == ssh_access.IAP:
            ssh_access.check_gcloud()
            return fine("through Identity-Aware Proxy")
        return fine(f"from {ssh_access.caller_source(self._config.ssh.source)}")

    def _settings(self, project: str = "none") -> Settings:
        return settings_of(self._config, self._limits, project=project)
