"""What is checked before VMs are made. Nothing is changed by it.

What the account may do in the project is not asked for: IAM's answer leaves out grants with a condition and new ones,
and a call that is refused names the permission.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING

from hvdcloud.checks import Check, Finding, NoAnswerError, Once, failed, fine, setup_hint, warning
from hvdcloud.errors import NodeError, UsageError
from hvdcloud.google.credentials import TOKEN_SECONDS
from hvdcloud.google.errors import explained
from hvdcloud.google.http import api_errors
from hvdcloud.parallel import side_by_side
from hvdcloud.providers.gce import ssh_access
from hvdcloud.providers.gce.api.client import connect_client
from hvdcloud.providers.gce.capacity.places import check_account, check_settings, find_zones
from hvdcloud.providers.gce.settings import DEFAULT_ACCOUNT, Settings, kind_of, settings_of
from hvdcloud.storage.base import BucketUnreachableError
from hvdcloud.storage.open import open_bucket
from hvdcloud.units import counted, some

if TYPE_CHECKING:
    from hvdcloud.cluster.model import ClusterSpec
    from hvdcloud.config.model import Config

RETRY_SECONDS = 5.0
"""A service that fails for longer than that is worth knowing of; `up` is more patient."""


def _check(name: str, run: Callable[[], Finding], *, see: tuple[str, ...] = ()) -> Check:
    """A check that asks Google, whose silence proves nothing: planning and making nodes ask it again, and longer."""

    def asked() -> Finding:
        try:
            return run()
        except (NodeError, BucketUnreachableError) as error:
            raise NoAnswerError(error.message, hint=error.hint, details=error.details) from error

    return Check(name=name, run=asked, see=see)


class Checks:
    """Whether there is an account, whether and where the nodes can be made, the bucket and the data sets."""

    def __init__(self, config: Config, spec: ClusterSpec) -> None:
        self._config = config.gce
        self._limits = config.limits
        self._data = {name: each.source for name, each in config.data.items() if each.source.startswith("gs://")}
        self._spec = spec
        self._today = datetime.now(timezone.utc).date()
        self._client = Once(lambda: connect_client(project=config.gce.project, retry_seconds=RETRY_SECONDS))

    def all(self) -> Iterator[Check]:
        """Each check, which asks nothing before it runs."""
        login = ("credentials",)
        yield _check("credentials", self._credentials)
        yield _check("service account", self._service_account)
        yield _check("machine", self._machine)
        yield _check("zones", self._zones, see=("machine", *login))
        yield _check("SSH", self._ssh)
        yield _check("bucket", self._bucket, see=login)
        if self._data:
            yield _check("data", self._data_sets, see=login)

    def _credentials(self) -> Finding:
        """Whether there are any, and whether Google still gives a token for them."""
        from google.auth.transport.requests import Request

        client = self._client()
        with explained("get a token for the Google credentials"), api_errors(client.project, service="token"):
            client.credentials.refresh(partial(Request(), timeout=TOKEN_SECONDS))
        who = getattr(client.credentials, "service_account_email", "") or getattr(client.credentials, "account", "")
        return fine(f"{who or 'a Google account'} in project {client.project}")

    def _service_account(self) -> Finding:
        """Which account nodes run as."""
        settings = self._settings()
        check_account(settings)
        if settings.service_account == DEFAULT_ACCOUNT:
            said = "which the organization may allow more than nodes need, or nothing at all"
            return warning(f"nodes run as the project's default service account, {said}", hint=setup_hint())
        return fine(f"nodes run as {settings.service_account}")

    def _machine(self) -> Finding:
        settings = self._settings()
        check_settings(self._spec, settings, today=self._today)
        return fine(str(kind_of(settings, self._spec.nodes - 1)))

    def _zones(self) -> Finding:
        client = self._client()
        settings, zones = self._settings(client.project), self._config.zones
        found = find_zones(client, self._spec, settings, zones=zones, today=self._today)
        return fine(f"quota for {counted(self._spec.nodes, 'node')} in {some(found, most=4)}")

    def _ssh(self) -> Finding:
        if self._config.ssh.source == ssh_access.IAP:
            ssh_access.check_gcloud()
            return fine("through Identity-Aware Proxy")
        return fine(f"from {ssh_access.caller_source(self._config.ssh.source)}")

    def _bucket(self) -> Finding:
        """Whether the bucket of the checkpoints exists, and whether we may look into it."""
        url = self._spec.bucket
        if not url.startswith("gs://"):
            return failed(
                f"the bucket {url} is a folder of this machine, which VMs cannot reach",
                hint="hvdcloud setup makes a bucket; or set checkpoints.bucket to gs://BUCKET[/PREFIX]",
            )
        self._holds_objects(url)
        return fine(f"{url} can be read")

    def _data_sets(self) -> Finding:
        """Whether the data sets with a gs:// source hold objects."""
        full = side_by_side(self._holds_objects, list(self._data.values()), only_reads=True)
        for (name, source), holds in zip(self._data.items(), full, strict=True):
            if not holds:
                hint = f"gcloud storage rsync --recursive DIR {source} uploads a folder; or correct data.{name}"
                raise UsageError(f"data.{name}: {source} holds no objects", hint=hint)
        return fine(f"there are objects in {'; '.join(self._data.values())}")

    def _holds_objects(self, url: str) -> bool:
        """Whether a bucket, or a folder there, has an object other than those that stand for folders."""
        found = open_bucket(url, retry_seconds=RETRY_SECONDS).list("")
        return any(each.name and not each.name.endswith("/") for each in found)

    def _settings(self, project: str = "none") -> Settings:
        return settings_of(self._config, self._limits, project=project)
