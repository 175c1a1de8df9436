"""Storage tokens of nodes that have no identity of their own: sent over the pinned connections, and sent again in time.

A token ends within an hour. While a run has checkpoints to upload, one background process for each cluster renews it,
like an ssh-agent: started by `run`, ended by `down`, when the cluster is gone, or when no run needs it any more. Each
command that looks at the cluster renews too and starts that process again, for a machine that was restarted meanwhile.
What a node cannot upload without a token waits there. `python -m` on this file is the background process.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdcloud.cluster.files import explained, state_root
from hvdcloud.cluster.state import ClusterState
from hvdcloud.errors import CredentialsError, HvdcloudError
from hvdcloud.json_values import mapping
from hvdcloud.lifecycle.context import Context
from hvdcloud.remote.join import recorded_data
from hvdcloud.runs.reports import instant, plain_name

if TYPE_CHECKING:
    from hvdcloud.cluster.model import Cluster
    from hvdcloud.config.model import Config
    from hvdcloud.remote.ssh import Fleet, Session

RENEW_SECONDS = 900.0
"""A command renews a token that ends within this time."""
ANSWER_SECONDS = 20.0
CHECK_SECONDS = 30.0
"""How often the background process looks whether the cluster is still there."""
RETRY_SECONDS = 10.0
POLL_SECONDS = 1.0
END_SECONDS = 5.0
LOCK_ATTEMPTS = 10
_PATHS_IN_ENVIRONMENT = ("GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CONFIG")


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """What came of one."""

    ends: float | None = None
    """When the first of the nodes' tokens ends, in seconds since the epoch; None: no run needs one."""
    error: CredentialsError | None = None
    """Why there is no new one."""
    whole: bool = True
    """Whether every node answered."""

    @property
    def waits(self) -> bool:
        """Whether uploads wait for a token."""
        return self.ends is not None and self.ends <= time.time()


def lend(context: Context, cluster: Cluster) -> Renewal:
    """Renew the tokens of nodes that end soon, and see that the background process runs. Warns where that failed; never
    raises HvdcloudError."""
    if not _applies(context, cluster):
        return Renewal()
    try:
        renewal = renew(context, cluster, context.fleet(cluster), ending_within=RENEW_SECONDS)
        if renewal.error is None and renewal.ends is not None and background_process(context.state) is None:
            start(context.state, context.config)
    except HvdcloudError as error:
        context.console.warn(f"the storage token was not renewed: {error.message}")
        return Renewal()
    if renewal.error is not None:
        waits = "; uploads wait for one" if renewal.waits else ""
        context.console.warn(f"{renewal.error.message}{waits} ({renewal.error.hint})")
    return renewal


def keep_renewing(context: Context, cluster: Cluster) -> None:
    """Start the background process for a run that has just begun, in place of one that may be about to end."""
    if _applies(context, cluster):
        try:
            end(context.state)
            start(context.state, context.config)
        except HvdcloudError as error:
            context.console.warn(f"nothing renews the storage token ({error.message}); hvdcloud status does, each time")


def renew(context: Context, cluster: Cluster, fleet: Fleet, *, ending_within: float) -> Renewal:
    """Ask the nodes which runs need a token, and send them another one where theirs ends within this many seconds.

    A node that does not answer is left out: its uploads wait.
    """
    from hvdcloud.checkpoints.manifest import run_prefix

    whole = True

    def ask(session: Session, tokens: dict[str, str]) -> dict[str, float]:
        answer = session.call("token", payload={"tokens": tokens}, timeout=ANSWER_SECONDS)
        runs = mapping(answer.get("runs"))
        return {run: instant(ends) or 0.0 for run, ends in runs.items() if plain_name(run)}

    def merged(tokens: dict[str, str]) -> dict[str, float]:
        nonlocal whole
        found: dict[str, float] = {}
        for each in fleet.each_outcome(lambda session: ask(session, tokens)):
            if isinstance(each, HvdcloudError):
                whole = False
                continue
            for run, ends in each.items():
                found[run] = min(ends, found.get(run, ends))
        return found

    found = merged({})
    due = [run for run, ends in found.items() if ends - time.time() < ending_within]
    error = None
    if due:
        try:
            tokens = {run: _token(context, cluster, run_prefix(cluster.name, run)) for run in due}
            found = merged({run: token for run, token in tokens.items() if token is not None})
        except CredentialsError as refused:
            error = refused
    return Renewal(ends=min(found.values(), default=None), error=error, whole=whole)


def _token(context: Context, cluster: Cluster, folder: str) -> str | None:
    platform = context.platform
    sources = _sources(context, cluster)
    return platform.storage_credentials(cluster.bucket, endpoint=context.storage_endpoint, writes=folder, data=sources)


def _applies(context: Context, cluster: Cluster) -> bool:
    sources = _sources(context, cluster)
    return context.platform.lends_token(cluster.bucket, *sources, endpoint=context.storage_endpoint)


def _sources(context: Context, cluster: Cluster) -> Sequence[str]:
    """Where the data sets of the cluster's newest run come from, by this machine's word: a node's is not asked for."""
    return [each.source for each in recorded_data(context.state.record_of(cluster.id)).values()]


# -- the background process --------------------------------------------------------------------------------------------


def background_process(state: ClusterState) -> int | None:
    """The process that renews the cluster's tokens; None: there is none."""
    with contextlib.suppress(OSError), _lock_file(state).open("rb") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                if (text := file.read(20)).endswith(b"\n"):
                    return int(text)
                # It has just begun.
                time.sleep(0.01)
            else:
                return None
    return None


def start(state: ClusterState, config: Config | None = None) -> None:
    """Start it.

    Args:
        config: says where the nodes are; None: on this machine.

    Raises:
        UsageError: the system refuses to.
    """
    # Not in the project's folder, from which Python would import; so paths have to be whole.
    named = {name: str(Path(os.environ[name]).absolute()) for name in _PATHS_IN_ENVIRONMENT if name in os.environ}
    with explained(Path(sys.executable)):
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, state.name, *_where_nodes_are(config)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **named, "HVDCLOUD_STATE_DIR": str(state_root())},
            cwd="/",
            start_new_session=True,
        )
    # It outlives this command, which does not wait for it.
    process.returncode = 0


def end(state: ClusterState) -> None:
    """End it, if it runs, and remove what it leaves."""
    deadline = time.monotonic() + END_SECONDS
    number = signal.SIGTERM
    while (process := background_process(state)) is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)
        time.sleep(0.02)
        if time.monotonic() > deadline:
            number = signal.SIGKILL
    _lock_file(state).unlink(missing_ok=True)


def _lock_file(state: ClusterState) -> Path:
    return state.dir / "tokens.lock"


def _where_nodes_are(config: Config | None) -> list[str]:
    """The parts of the configuration by which the background process finds the nodes, as JSON; it holds no secret."""
    if config is None or config.provider != "ssh":
        return []
    return [json.dumps({"provider": "ssh", "nodes": config.nodes, "ssh": config.ssh.model_dump(mode="json")})]


def main(name: str, places: str = "{}") -> None:
    """Renew the tokens of this cluster's nodes as long as a run needs them."""
    state = ClusterState(name)
    record = state.load()
    if record is None:
        return
    lock = os.open(_lock_file(state), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not _locked(lock):
        return
    os.truncate(lock, 0)
    os.write(lock, f"{os.getpid()}\n".encode())
    _work(state, record.id, json.loads(places))
    if state.load() is None:
        _lock_file(state).unlink(missing_ok=True)


def _locked(file: int) -> bool:
    """Hold the lock from now on; False: another process does, for longer than it takes to look."""
    for _ in range(LOCK_ATTEMPTS):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.05)
        else:
            return True
    return False


def _work(state: ClusterState, cluster_id: str, places: Mapping[str, Any]) -> None:
    """Until the cluster is gone, or no run of it needs a token."""
    from hvdcloud.config.model import Config
    from hvdcloud.console import Console

    # Of the other configuration nothing matters.
    config, console = Config.model_validate({"name": state.name, **places}), Console(quiet=True)
    renew_at = check_at = 0.0
    while state.record_of(cluster_id) is not None:
        # By the wall clock, which also runs while a machine sleeps.
        now = time.time()
        if now >= min(renew_at, check_at):
            check_at = now + CHECK_SECONDS
            try:
                with Context(config, console) as context:
                    cluster = context.query()
                    if cluster is None or cluster.id != cluster_id:
                        return
                    if now >= renew_at:
                        renewal = renew(context, cluster, context.fleet(cluster), ending_within=float("inf"))
                        if renewal.ends is None and renewal.whole and cluster.whole:
                            return
                        left = (renewal.ends or now) - time.time()
                        renew_at = time.time() + (left / 2 if renewal.error is None and left > 0 else RETRY_SECONDS)
            except Exception:  # noqa: BLE001 - no network, no engine: while the cluster may be there, it is tried again
                renew_at = time.time() + RETRY_SECONDS
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
