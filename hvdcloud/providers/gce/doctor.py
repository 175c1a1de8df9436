"""What is checked before VMs are made: account, places, bucket and data sets. Nothing is changed by it.

What the account may do in the project is not asked for: IAM's answer leaves out grants with a condition and new ones,
and a call that is refused names the permission.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from hvdcloud.checks import Check, Finding, NoAnswerError, failed, fine, setup_hint, warning
from hvdcloud.errors import CheckpointError, NodeError, UsageError
from hvdcloud.google.credentials import TOKEN_SECONDS, google_credentials
from hvdcloud.google.errors import explained
from hvdcloud.google.http import api_errors
from hvdcloud.parallel import side_by_side
from hvdcloud.providers.gce import ssh_access
from hvdcloud.providers.gce.api.client import ComputeClient
from hvdcloud.providers.gce.capacity.places import check_account, check_settings, find_zones
from hvdcloud.providers.gce.settings import DEFAULT_ACCOUNT, Settings, kind_of, settings_of
from hvdcloud.storage.open import open_bucket
from hvdcloud.units import counted, size, some

if TYPE_CHECKING:
    from hvdcloud.cluster.model import ClusterSpec
    from hvdcloud.config.data import DataConfig
    from hvdcloud.config.model import Config
    from hvdcloud.storage.base import ObjectInfo

RETRY_SECONDS = 5.0
"""A service that fails for longer than that is worth knowing of; `up` is more patient."""
MOST_OBJECTS = 10_000
"""Of a data set, that are listed; one that has more is at least as large as those."""
_Login = Callable[[], tuple[Any, str]]
"""This machine's credentials, and the project."""


def checks(config: Config, spec: ClusterSpec) -> Iterator[Check]:
    """Whether there is an account, whether and where the nodes can be made, the bucket and the data sets."""
    gce, today = config.gce, datetime.now(timezone.utc).date()
    login, see = cache(partial(google_credentials, gce.project)), ("credentials",)
    settings = partial(settings_of, gce, config.limits)

    def machine() -> Finding:
        wanted = settings(project="none")
        check_settings(spec, wanted, today=today)
        return fine(str(kind_of(wanted, spec.nodes - 1)))

    def zones() -> Finding:
        credentials, project = login()
        client = ComputeClient(project=project, credentials=credentials, retry_seconds=RETRY_SECONDS)
        found = find_zones(client, spec, settings(project=project), zones=gce.zones, today=today)
        return fine(f"quota for {counted(spec.nodes, 'node')} in {some(found, most=4)}")

    def ssh() -> Finding:
        if gce.ssh.source == ssh_access.IAP:
            ssh_access.check_gcloud()
            return fine("through Identity-Aware Proxy")
        return fine(f"from {ssh_access.caller_source(gce.ssh.source)}")

    yield _check("credentials", lambda: _credentials(login))
    yield _check("service account", lambda: _service_account(settings(project="none")))
    yield _check("machine", machine)
    yield _check("zones", zones, see=("machine", *see))
    yield _check("SSH", ssh)
    yield _check("bucket", lambda: _bucket(login, spec.bucket), see=see)
    if data := {name: each for name, each in config.data.items() if each.source.startswith("gs://")}:
        yield _check("data", lambda: _data(login, data), see=see)


def _check(name: str, run: Callable[[], Finding], *, see: tuple[str, ...] = ()) -> Check:
    """A check that asks Google, whose silence proves nothing: planning and making nodes ask it again, and longer."""

    def asked() -> Finding:
        try:
            return run()
        except NodeError as error:
            raise NoAnswerError(error.message, hint=error.hint, details=error.details) from error

    return Check(name=name, run=asked, see=see)


def _credentials(login: _Login) -> Finding:
    """Whether there are any, and whether Google still gives a token for them."""
    from google.auth.transport.requests import Request

    credentials, project = login()
    with explained("get a token for the Google credentials"), api_errors(project, service="token"):
        credentials.refresh(partial(Request(), timeout=TOKEN_SECONDS))
    who = getattr(credentials, "service_account_email", "") or getattr(credentials, "account", "")
    return fine(f"{who or 'a Google account'} in project {project}")


def _service_account(settings: Settings) -> Finding:
    """Which account nodes run as. Raises UsageError: none is named."""
    check_account(settings)
    if settings.service_account == DEFAULT_ACCOUNT:
        said = "which the organization may allow more than nodes need, or nothing at all"
        return warning(f"nodes run as the project's default service account, {said}", hint=setup_hint())
    return fine(f"nodes run as {settings.service_account}")


def _bucket(login: _Login, url: str) -> Finding:
    """Whether the bucket of the checkpoints, `gs://BUCKET[/PREFIX]`, exists, and whether we may look into it."""
    if not url.startswith("gs://"):
        return failed(
            f"the bucket {url} is a folder of this machine, which VMs cannot reach",
            hint="hvdcloud setup makes a bucket; or set checkpoints.bucket to gs://BUCKET[/PREFIX]",
        )
    if _objects(login, url, most=1) is None:
        name, (_, project) = url.removeprefix("gs://").partition("/")[0], login()
        create = f"gcloud storage buckets create gs://{name} --project={project} --uniform-bucket-level-access"
        return failed(f"there is no bucket gs://{name}", hint=f"hvdcloud setup makes one; or {create}")
    return fine(f"{url} can be read")


def _data(login: _Login, sets: Mapping[str, DataConfig]) -> Finding:
    """Whether the data sets, all with a gs:// source, hold objects, and how large they are.

    Raises UsageError: one holds none. CredentialsError: it may not be read.
    """

    def look_at(name: str) -> str:
        source = sets[name].source
        objects = _objects(login, source, most=MOST_OBJECTS) or []
        sizes = [each.size for each in objects if each.name and not each.name.endswith("/")]
        if not sizes:
            hint = f"gcloud storage rsync --recursive DIR {source} uploads a folder; or correct data.{name}"
            raise UsageError(f"data.{name}: {source} holds no objects", hint=hint)
        least = "at least " if len(objects) == MOST_OBJECTS else ""
        return f"{name}: {least}{size(sum(sizes))} in {counted(len(sizes), 'object')} of {source}"

    return fine("; ".join(side_by_side(look_at, list(sets), only_reads=True)))


def _objects(login: _Login, url: str, *, most: int) -> list[ObjectInfo] | None:
    """The first objects below `gs://BUCKET[/FOLDER]`; None: there is no such bucket.

    Raises CredentialsError: they may not be listed. NoAnswerError: for any other reason they cannot be.
    """
    credentials, _ = login()
    # Another endpoint is used without credentials, as everywhere.
    anonymous = "STORAGE_EMULATOR_HOST" in os.environ
    bucket = open_bucket(url, credentials=None if anonymous else credentials, retry_seconds=RETRY_SECONDS)
    try:
        return list(itertools.islice(bucket.list(""), most))
    except UsageError:
        return None
    except CheckpointError as error:
        raise NoAnswerError(error.message, hint=error.hint) from error
