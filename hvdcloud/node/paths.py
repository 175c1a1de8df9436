"""Where everything lives inside a node's container.

The environment variable HVDCLOUD_NODE_ROOT puts all of it below another folder; only tests set it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from hvdcloud.errors import UsageError

ROOT_VARIABLE = "HVDCLOUD_NODE_ROOT"
RUN_VARIABLE = "HVDCLOUD_RUN"
"""In the environment of every process of a run: how its processes are found, regardless of their parent."""
SSH_PORT = 2222
"""Where a node's sshd answers, unless its provider chose another port (machine.py)."""

MOUNTED = "/var/lib/hvdcloud/data"
"""Where a node has the data sets that are folders of its host, by name."""
STAGING = ".hvdcloud-staging"
"""The folder in the workspace for files that are on their way."""

_RUN_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{6}")


def root() -> Path:
    """`/`, or the folder that a test put in its place."""
    return Path(os.environ.get(ROOT_VARIABLE) or "/")


def check_run_id(run: str) -> str:
    """The run id itself. Raises UsageError: not of the form YYYYmmdd-HHMMSS-XXXXXX; it becomes part of paths."""
    if not _RUN_ID.fullmatch(run):
        raise UsageError(f"{run!r} is not a run", hint="`hvdcloud status` shows the runs")
    return run


def state_dir() -> Path:
    """What outlives a run."""
    return root() / "var/lib/hvdcloud"


def node_file() -> Path:
    """What the entrypoint knew of its container and SSH sessions do not see."""
    return state_dir() / "node.json"


def peers_file() -> Path:
    """The cluster's nodes with address, port and host key, as `join` learned them."""
    return state_dir() / "peers.json"


def sync_file() -> Path:
    """Which files of the workspace a code sync put there."""
    return state_dir() / "sync.json"


def runs_dir() -> Path:
    """One folder per run."""
    return state_dir() / "runs"


def run_dir(run: str) -> Path:
    """Log, state, spec and rank records of one run."""
    return runs_dir() / check_run_id(run)


def hosts_file(run: str) -> Path:
    """The nodes that an elastic run uses now, each with its slots, on its head."""
    return run_dir(run) / "hosts"


def uploads_file(run: str) -> Path:
    """The last report of this node's agent on its uploads."""
    return run_dir(run) / "uploads.json"


def checkpoints_dir(run: str) -> Path:
    """HVDCLOUD_CHECKPOINT_DIR of one run."""
    return state_dir() / "checkpoints" / check_run_id(run)


def outputs_dir(run: str) -> Path:
    """What one run wrote in the project's folder, once that is another run's."""
    return state_dir() / "outputs" / check_run_id(run)


def workspace_file() -> Path:
    """The run whose outputs the changes in the project's folder are, and what was there before."""
    return state_dir() / "workspace.json"


def bucket_dir() -> Path:
    """A folder bucket: this machine's that is mounted here, or one that the node has for itself."""
    return state_dir() / "bucket"


def data_dir() -> Path:
    """HVDCLOUD_DATA: one folder per data set, and what the fetcher keeps of them (`.hvdcloud`)."""
    return state_dir() / "data"


def volatile_dir() -> Path:
    """Locks, sockets and secrets: nothing that needs to outlive the container's processes."""
    return root() / "run/hvdcloud"


def secret_dir(run: str) -> Path:
    """Environment with secrets, and the agent's socket of one run; mode 0700."""
    return volatile_dir() / check_run_id(run)


def env_file(run: str) -> Path:
    """Environment of the ranks, secrets included; mode 0600; gone when the run has ended."""
    return secret_dir(run) / "env.json"


def notify_file(run: str) -> Path:
    """The secret address that is told of a run's end, on its head; mode 0600; gone when that is done."""
    return secret_dir(run) / "notify.json"


def agent_socket(run: str) -> Path:
    """Where a run's agent listens to the ranks of its node."""
    return secret_dir(run) / "agent.sock"


def agent_lock(run: str) -> Path:
    """Held by the run's agent on this node; holds its process id."""
    return volatile_dir() / f"{check_run_id(run)}.agent"


def supervisor_lock() -> Path:
    """Held by the supervisor of the active run, one per cluster; holds run and process id."""
    return volatile_dir() / "supervisor"


def activity_file() -> Path:
    """When there was last activity on this node."""
    return volatile_dir() / "activity"


def data_fetcher_lock() -> Path:
    """Held by the fetcher of data sets; holds its request's digest and process id."""
    return volatile_dir() / "data.fetcher"


def data_state_file() -> Path:
    """How far the fetcher of data sets is."""
    return volatile_dir() / "data.json"


def workspace() -> Path:
    """The project's code; where ranks start."""
    return root() / "workspace"


def ssh_dir() -> Path:
    """Root's keys and configuration for the other nodes."""
    return root() / "root/.ssh"
