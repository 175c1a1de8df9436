"""What is checked before VMs are made: account, places, bucket and data sets. Nothing is changed by it.

What the account may do in the project is not asked for: IAM's answer leaves out grants with a condition and new ones,
and a call that is refused names the permission.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING

from hvdcloud.checks import SETUP_HINT, Check, Finding, NoAnswerError, Once, failed, fine, warning
from hvdcloud.errors import NodeError, UsageError
from hvdcloud.google.credentials import TOKEN_SECONDS
from hvdcloud.google.errors import explained
from hvdcloud.google.http import api_errors
from hvdcloud.parallel import side_by_side
from hvdcloud.providers.gce import ssh_access
from hvdcloud.providers.gce.api.client import ComputeClient, connect_client
from hvdcloud.providers.gce.capacity.places import check_account, check_settings, find_zones
from hvdcloud.providers.gce.capacity.reservations import find_reservation
from hvdcloud.providers.gce.settings import DEFAULT_ACCOUNT, Settings, kind_of, settings_of
from hvdcloud.storage.base import BucketUnreachableError
from hvdcloud.storage.open import open_bucket
from hvdcloud.units import counted, some

if TYPE_CHECKING:
    from hvdcloud.cluster.model import ClusterSpec
    from hvdcloud.config.model import Config

RETRY_SECONDS = 5.0
"""A service that fails for longer than that is worth knowing of; `up` is more patient."""


def checks(config: Config, spec: ClusterSpec) -> Iterator[Check]:
    """Whether there is an account, whether and where the nodes can be made, the bucket and the data sets."""
    gce, today = config.gce, datetime.now(timezone.utc).date()
    connect, see = Once(partial(connect_client, project=gce.project, retry_seconds=RETRY_SECONDS)), ("credentials",)
    settings = partial(settings_of, gce, config.limits, elastic=config.run.elastic is not None)

    def machine() -> Finding:
        wanted = settings(project="none")
        check_settings(spec, wanted, today=today)
        return fine(str(kind_of(wanted, spec.nodes - 1)))

    def zones() -> Finding:
        client, allowed = connect(), list(gce.zones)
        wanted = settings(project=client.project)
        if wanted.provisioning == "reservation":
            now = datetime.now(timezone.utc)
            wanted, allowed = find_reservation(client, wanted, nodes=spec.nodes, zones=allowed, now=now)
            room = f"room for {counted(spec.nodes, 'node')} in {some(allowed)}"
            return fine(f"reservation {gce.reservation} has {room}, and takes no quota")
        found = find_zones(client, spec, wanted, zones=allowed, today=today)
        return fine(f"quota for {counted(spec.nodes, 'node')} in {some(found, most=4)}")

    def ssh() -> Finding:
        if gce.ssh.source == ssh_access.IAP:
            ssh_access.check_gcloud()
            return fine("through Identity-Aware Proxy")
        return fine(f"from {ssh_access.caller_source(gce.ssh.source)}")

    yield _check("credentials", lambda: _credentials(connect()))
    yield _check("service account", lambda: _service_account(settings(project="none")))
    yield _check("machine", machine)
    yield _check("zones", zones, see=("machine", *see))
    yield _check("SSH", ssh)
    yield _check("bucket", lambda: _bucket(spec.bucket), see=see)
    if data := {name: each.source for name, each in config.data.items() if each.source.startswith("gs://")}:
        yield _check("data", lambda: _data(data), see=see)


def _check(name: str, run: Callable[[], Finding], *, see: tuple[str, ...] = ()) -> Check:
    """A check whose service may give no answer, which proves nothing."""

    def asked() -> Finding:
        try:
            return run()
        except (NodeError, BucketUnreachableError) as error:
            raise NoAnswerError(error.message, hint=error.hint, details=error.details) from error

    return Check(name=name, run=asked, see=see)


def _credentials(client: ComputeClient) -> Finding:
    """Whether there are any, and whether Google still gives a token for them."""
    from google.auth.transport.requests import Request

    with explained("get a token for the Google credentials"), api_errors(client.project, service="token"):
        client.credentials.refresh(partial(Request(), timeout=TOKEN_SECONDS))
    who = getattr(client.credentials, "service_account_email", "") or getattr(client.credentials, "account", "")
    return fine(f"{who or 'a Google account'} in project {client.project}")


def _service_account(settings: Settings) -> Finding:
    """Which account nodes run as. Raises UsageError: none is named."""
    check_account(settings)
    if settings.service_account == DEFAULT_ACCOUNT:
        said = "which the organization may allow more than nodes need, or nothing at all"
        return warning(f"nodes run as the project's default service account, {said}", hint=SETUP_HINT)
    return fine(f"nodes run as {settings.service_account}")


def _bucket(url: str) -> Finding:
    """Whether the bucket of the checkpoints, `gs://BUCKET[/PREFIX]`, exists, and whether we may look into it."""
    if not url.startswith("gs://"):
        return failed(
            f"the bucket {url} is a folder of this machine, which VMs cannot reach",
            hint="hvdcloud setup makes a bucket; or set checkpoints.bucket to gs://BUCKET[/PREFIX]",
        )
    _holds_objects(url)
    return fine(f"{url} can be read")


def _data(sources: Mapping[str, str]) -> Finding:
    """Whether the data sets, all with a gs:// source, hold objects. Raises UsageError: one holds none."""
    full = side_by_side(_holds_objects, list(sources.values()), only_reads=True)
    for (name, source), holds in zip(sources.items(), full, strict=True):
        if not holds:
            hint = f"gcloud storage rsync --recursive DIR {source} uploads a folder; or correct data.{name}"
            raise UsageError(f"data.{name}: {source} holds no objects", hint=hint)
    return fine(f"there are objects in {'; '.join(sources.values())}")


def _holds_objects(url: str) -> bool:
    """Whether a bucket, or a folder there, has an object other than those that stand for folders."""
    found = open_bucket(url, retry_seconds=RETRY_SECONDS).list("")
    return any(each.name and not each.name.endswith("/") for each in found)
