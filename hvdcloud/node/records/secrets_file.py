"""What only this node's root may read: the ranks' environment with its secrets, and the address that is told of the
run's end."""

from __future__ import annotations

import contextlib
import json

from hvdcloud.errors import UsageError
from hvdcloud.json_values import text
from hvdcloud.node import paths
from hvdcloud.node.files import read_json, write_json


def write_private(run: str, *, environment: dict[str, str], notify: str | None = None) -> None:
    """Write them where the ranks and the agent of a run read them.

    Args:
        notify: the address that is told of the run's end, on its head.
    """
    folder = paths.secret_dir(run)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    write_json(paths.env_file(run), environment, mode=0o600)
    if notify is not None:
        write_json(paths.notify_file(run), {"address": notify}, mode=0o600)


def read_environment(run: str) -> dict[str, str]:
    """Environment of the ranks, secrets included. Raises UsageError: the run has ended, or was not prepared on this
    node."""
    try:
        value: dict[str, str] = json.loads(paths.env_file(run).read_bytes())
    except FileNotFoundError:
        why = f"run {run} has ended or was not prepared on this node"
        raise UsageError(why, hint="hvdcloud run starts another one") from None
    return value


def read_notify(run: str) -> str | None:
    """The address that is told of a run's end; None: there is none, or that is done."""
    return text((read_json(paths.notify_file(run)) or {}).get("address")) or None


def forget_notify(run: str) -> None:
    """Delete the address that is told of a run's end."""
    paths.notify_file(run).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        paths.secret_dir(run).rmdir()


def forget(run: str) -> None:
    """Delete the secrets of a run that has ended on this node."""
    paths.env_file(run).unlink(missing_ok=True)
    paths.agent_socket(run).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        paths.secret_dir(run).rmdir()
