"""`check-collective` and `check-rank`: all-reduces between nodes, by the launcher of a run and the image's Horovod.

Several jobs run side by side, each between other nodes. What is left of a job that does not end is killed here and by
`check-end` on the other nodes; a rank also ends itself after its time, whatever becomes of the others.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hvdcloud.errors import UsageError
from hvdcloud.json_values import parse_object
from hvdcloud.node import machine, paths, processes, rank_user
from hvdcloud.node.check.job.allreduce import MARK
from hvdcloud.node.mesh.ssh import NODE_PROGRAM, forget_connections
from hvdcloud.node.run.launcher import launcher_argv, launcher_environment
from hvdcloud.node.run.prepare import refuse_while_active
from hvdcloud.node.run.rank import which, with_own_interface

SPEC_VARIABLE = "HVDCLOUD_CHECK"
"""What `check-rank` has to do, as JSON; Horovod's launcher passes it on. It holds no secret."""
START_SECONDS = 120.0
"""For every rank to import its framework and to meet the others."""
_LINES = 5
_MOST_OUTPUT = 1 << 20


def main(request: Mapping[str, Any]) -> dict[str, Any]:
    """Run every job of a request at once; on the head.

    Args:
        request: `run`: a mark for its processes, in the form of a run's id; `jobs`: each job's horovodrun command;
            `seconds`: how long each measures; `size`: bytes of the large message; `user`: whom ranks run as.

    Returns:
        `results`: for each job what its rank 0 has found, or `error`.

    Raises:
        UsageError: the request cannot be used.
        ActiveRunError: a run is active.
    """
    try:
        run = paths.check_run_id(request["run"])
        jobs = [[str(word) for word in job] for job in request["jobs"]]
        seconds, size, user = float(request["seconds"]), int(request["size"]), str(request.get("user") or "")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"check: {type(error).__name__}: {error}", hint="hvdcloud check again") from error
    refuse_while_active()
    # Kept connections may lead to a node that has been replaced since.
    forget_connections()
    limit = 2 * seconds + START_SECONDS
    spec = json.dumps({"seconds": seconds, "size": size, "user": user, "limit": limit})
    with ThreadPoolExecutor(max_workers=max(1, len(jobs))) as pool:
        results = list(pool.map(lambda job: _run_job(job, run=run, spec=spec, limit=limit), jobs))
    end(run)
    return {"results": results}


def end(run: str) -> dict[str, Any]:
    """End what is left of a check's jobs on this node."""
    left = processes.reap(paths.check_run_id(run))
    forget_connections()
    return {"left": left}


def _run_job(horovodrun: Sequence[str], *, run: str, spec: str, limit: float) -> dict[str, Any]:
    """One job, to its end or until its time is over."""
    environment = {**launcher_environment(run), SPEC_VARIABLE: spec}
    try:
        launcher = subprocess.Popen(
            [*launcher_argv(horovodrun, path=environment["PATH"]), NODE_PROGRAM, "check-rank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=paths.volatile_dir(),
            start_new_session=True,
        )
    except OSError as error:
        return {"error": f"{horovodrun[0]} could not be started: {error.strerror}"}
    overdue = threading.Event()

    def give_up() -> None:
        overdue.set()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(launcher.pid, signal.SIGKILL)

    watch = threading.Timer(limit, give_up)
    watch.daemon = True
    watch.start()
    assert launcher.stdout is not None
    with launcher:
        output = b""
        for piece in launcher.stdout:
            output = (output + piece)[-_MOST_OUTPUT:]
    watch.cancel()
    lines = output.decode(errors="replace").splitlines()
    for line in lines:
        _, mark, rest = line.partition(MARK)
        if mark and (found := parse_object(rest)) is not None:
            return found
    if overdue.is_set():
        return {"error": f"it took longer than {limit:.0f} s"}
    said = [line.strip() for line in lines if line.strip()][-_LINES:]
    return {"error": " · ".join(said) or f"horovodrun ended with exit code {launcher.returncode}"}


def rank() -> int:
    """Become one rank of a job. Raises UsageError: it was not started by one."""
    wanted = parse_object(os.environ.get(SPEC_VARIABLE, ""))
    if wanted is None:
        raise UsageError("check-rank is started by check-collective alone", hint="hvdcloud check")
    # The kernel's own: also a rank that hangs in a driver's library ends, and it survives the exec.
    signal.alarm(int(float(wanted["limit"])) + 1)
    account = rank_user.find(str(wanted["user"]))
    environment = {**machine.image_environment(), **with_own_interface(os.environ)}
    python = which("python", environment.get("PATH", os.defpath))
    job = Path(__file__).with_name("job") / "allreduce.py"
    argv = [python, str(job), str(wanted["seconds"]), str(wanted["size"])]
    if account is not None:
        environment |= account.environment
        argv = account.command(argv)
    os.chdir("/")
    os.execve(argv[0], argv, environment)


def deadline(seconds: float) -> float:
    """How long the answer of `check-collective` may take, for jobs that measure for this many seconds."""
    return 2 * seconds + START_SECONDS + 60.0
