"""What only this node's root may read: the ranks' environment with its secrets, and where notices are sent."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

from hvdcloud.errors import UsageError
from hvdcloud.node import paths
from hvdcloud.node.files import read_json, write_json

if TYPE_CHECKING:
    from hvdcloud.runs.notice import Settings


def write_private(run: str, *, environment: dict[str, str], notify: Settings | None = None) -> None:
    """Put them where the ranks and the agent of a run find them.

    Args:
        notify: where a person is told of the run.
    """
    folder = paths.secret_dir(run)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    write_json(paths.env_file(run), environment, mode=0o600)
    if notify is not None:
        write_json(paths.notify_file(run), notify.to_json(), mode=0o600)


def read_environment(run: str) -> dict[str, str]:
    """Environment of the ranks, secrets included. Raises UsageError: the run has ended, or was not prepared on this
    node."""
    try:
        value: dict[str, str] = json.loads(paths.env_file(run).read_bytes())
    except FileNotFoundError:
        why = f"run {run} has ended or was not prepared on this node"
        raise UsageError(why, hint="hvdcloud run starts another one") from None
    return value


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


def forget(run: str) -> None:
    """Delete the secrets of a run that has ended on this node."""
    paths.env_file(run).unlink(missing_ok=True)
    paths.agent_socket(run).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        paths.secret_dir(run).rmdir()
