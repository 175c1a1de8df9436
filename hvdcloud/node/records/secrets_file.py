"""What only this node's root may read: the ranks' environment with its secrets, Google credentials, and addresses that
notices of the run are sent to."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

from hvdcloud.errors import UsageError
from hvdcloud.json_values import parse_object
from hvdcloud.node import paths
from hvdcloud.node.files import read_json, write_json

if TYPE_CHECKING:
    from hvdcloud.runs.notice import Settings

METADATA = "metadata"
"""Instead of credentials: the node asks its VM's metadata server for a token of the service account."""


def write_private(
    run: str, *, environment: dict[str, str], credentials: str | None, notify: Settings | None = None
) -> None:
    """Put them where the ranks and the agent of a run find them. Raises UsageError: the credentials are not JSON.

    Args:
        credentials: JSON text of a token or a Google credentials file, for the agent alone; METADATA: those of the
            VM's service account; None: none.
        notify: where a person is told of the run.
    """
    folder = paths.secret_dir(run)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    write_json(paths.env_file(run), environment, mode=0o600)
    if notify is not None:
        write_json(paths.notify_file(run), notify.to_json(), mode=0o600)
    target = paths.credentials_file(run)
    if credentials is None:
        target.unlink(missing_ok=True)
        return
    try:
        write_json(target, json.loads(as_json(credentials)), mode=0o600)
    except ValueError:
        hint = "gcloud auth application-default login makes new ones"
        raise UsageError("the Google credentials are not JSON", hint=hint) from None


def as_json(credentials: str) -> str:
    """The credentials as the JSON text that a bucket is opened with."""
    return json.dumps({"type": METADATA}) if credentials == METADATA else credentials


def renew_token(run: str, text: str) -> float:
    """Replace a run's storage token, for its agent alone; returns when it ends. Raises UsageError: it is none."""
    from hvdcloud.storage.token_file import token_expiry

    content = parse_object(text)
    expiry = token_expiry(content)
    if expiry is None:
        raise UsageError(f"what was sent for run {run} is not a storage token", hint="hvdcloud status sends another")
    write_json(paths.credentials_file(run), content, mode=0o600)
    return expiry


def read_environment(run: str) -> dict[str, str]:
    """Environment of the ranks, secrets included. Raises UsageError: the run has ended, or was not prepared on this
    node."""
    try:
        value: dict[str, str] = json.loads(paths.env_file(run).read_bytes())
    except FileNotFoundError:
        why = f"run {run} has ended or was not prepared on this node"
        raise UsageError(why, hint="hvdcloud run starts another one") from None
    return value


def read_credentials(run: str) -> str | None:
    """The credentials as `write_private` took them."""
    found = read_json(paths.credentials_file(run))
    if found is None:
        return None
    return METADATA if found == {"type": METADATA} else json.dumps(found)


def read_notify(run: str) -> Settings | None:
    """Where a person is told of a run; None: nowhere, or that is done."""
    found = read_json(paths.notify_file(run))
    if found is None:
        return None
    from hvdcloud.runs.notice import Settings

    return Settings.from_json(found)


def forget_notify(run: str) -> None:
    """Delete where a person is told of a run."""
    paths.notify_file(run).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        paths.secret_dir(run).rmdir()


def forget(run: str, *, keep_credentials: bool) -> None:
    """Delete the secrets of a run that has ended on this node; uploads that are left may need the credentials."""
    paths.env_file(run).unlink(missing_ok=True)
    paths.agent_socket(run).unlink(missing_ok=True)
    if keep_credentials:
        return
    paths.credentials_file(run).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        paths.secret_dir(run).rmdir()
