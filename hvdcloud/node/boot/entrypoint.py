"""`entrypoint`, a node's first process: it sets up keys, starts sshd and publishes that the node is ready.

What the node publishes are lines on standard output: `hvdcloud-status {"status": …}`, where the local provider reads
them through the engine. `ready` carries the public host key, for the laptop to pin. The last one, `ended`, says whether
all checkpoints are in the bucket (`complete`): a VM's startup script then deletes the VM (providers/gce/plan/startup).

Where HVDCLOUD_METADATA names a metadata server, as on Compute Engine, the same JSON becomes the guest attribute
`hvdcloud/status` of the VM (https://cloud.google.com/compute/docs/metadata/manage-guest-attributes).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hvdcloud.json_values import parse_object
from hvdcloud.node import paths
from hvdcloud.node.boot import time_limit
from hvdcloud.node.boot.bucket_proof import BUCKET_VARIABLE, SETTLED_VARIABLE
from hvdcloud.node.data.fetcher import DATA_VARIABLE
from hvdcloud.node.files import write_json
from hvdcloud.node.processes import own_program
from hvdcloud.node.run import control
from hvdcloud.node.uploads import drain

SSHD = "/usr/sbin/sshd"
SSHD_CONFIG = Path("/etc/hvdcloud/sshd_config")
PROFILES = Path("/etc/profile.d")
_TO_WORKSPACE = """\
case $- in *i*) if [ "$PWD" = "$HOME" ] && [ -d /workspace ]; then cd /workspace; fi ;; esac
"""
_PLAIN_PATH = re.compile(r"[\w./:@+-]+", re.ASCII)
HOST_KEY = Path("/etc/hvdcloud/ssh_host_ed25519_key")
LAST_LOGINS = Path("/var/log/lastlog")
DRIVER = Path("/usr/local/nvidia/lib64")
"""Where Container-Optimized OS has the GPU driver's libraries: there is no NVIDIA container toolkit to mount them."""
LDCONFIG = "/sbin/ldconfig"
METADATA_VARIABLE = "HVDCLOUD_METADATA"
IDLE_VARIABLE = "HVDCLOUD_IDLE"
PORT_VARIABLE, ADDRESS_VARIABLE = "HVDCLOUD_SSH_PORT", "HVDCLOUD_SSH_ADDRESS"
"""Where sshd listens in a container that has its host's network: the port, and the address beside 127.0.0.1."""
READY_SECONDS = 20.0
PUBLISH_SECONDS = 30.0
"""How long requests to a metadata server that does not answer are repeated."""
REFUSED_PAUSE_SECONDS = 15.0
_POLL_SECONDS, _PROOF_POLL_SECONDS, _AGAIN_SECONDS, _CHECK_SECONDS = 0.01, 0.05, 0.5, 1.0
_TOLD_TO_END = {signal.SIGTERM, signal.SIGINT}
_WAITED_FOR = {signal.SIGCHLD, *_TOLD_TO_END}
_METADATA_STEP = "metadata"
_ATTRIBUTE = "/computeMetadata/v1/instance/guest-attributes/hvdcloud/status"
_NOT_THE_IMAGES = {"HOME", "HOSTNAME", "OLDPWD", "PWD", "SHLVL", "TERM", "_"}


class _StepError(Exception):
    """A step of the start that failed."""

    def __init__(self, step: str, cause: str, *, refused: str = "") -> None:
        super().__init__(cause)
        self.step = step
        self.refused = refused  # What the node may not do with its bucket: create, read or replace.


def main() -> int:
    """Be the container's first process until it gets SIGTERM, or sshd ends. Returns 0 after SIGTERM, else 1."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
    try:
        publish({"status": "starting"})
        _step("authorized key", _authorize)
        _step("GPU driver", _find_driver)
        _step("node.json", _write_node_file)
        _step("left-overs", _forget_dead_runs)
        host_key = _step("host key", _host_key)
        _step("port", _check_port)
        sshd = _step("sshd", _start_sshd)
        _step("data", _fetch_data)
        if not _wait_until_ready(sshd) or not _prove_bucket():
            return _power_off(sshd)
        publish({"status": "ready", "host_key": host_key})
        limits = _step("limits", _limits)
    except _StepError as error:
        return _fail(error)
    waiting: dict[int, Sequence[str]] = {}
    start_at = 0.0
    while True:
        if time.monotonic() >= start_at:
            start_at = time.monotonic() + _CHECK_SECONDS
            for words in (words for words in limits if words not in waiting.values()):
                with contextlib.suppress(OSError):
                    waiting[_start(*words)] = words
        received = signal.sigtimedwait(_WAITED_FOR, _CHECK_SECONDS)
        if received is not None and received.si_signo in _TOLD_TO_END:
            return _power_off(sshd)
        ended = _reap()
        if sshd in ended:
            return _fail(_StepError("sshd", "sshd ended"))
        waiting = {pid: words for pid, words in waiting.items() if pid not in ended}


def _limits() -> list[Sequence[str]]:
    """What the node program is to do beside this process: end the node when it is idle, and when its time is over.

    Raises ValueError: a limit is not a number of seconds.
    """
    found: list[Sequence[str]] = []
    if text := os.environ.get(IDLE_VARIABLE):
        found.append(["end-when-idle", str(float(text))])
    if text := os.environ.get(time_limit.VARIABLE):
        found.append(["end-at-limit", str(time_limit.now() + float(text))])
    return found


def _start(*words: str, output: str | None = None) -> int:
    """Start the node program with these words; returns its process. `output`: the file that gets what it prints."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    actions = [(os.POSIX_SPAWN_OPEN, 1, output, flags, 0o600)] if output else []
    return os.posix_spawn(sys.executable, own_program(*words), os.environ, file_actions=actions, setsigmask=())


def publish(status: dict[str, Any], *, seconds: float = PUBLISH_SECONDS) -> None:
    """Print the node's status as one line, and set the VM's guest attribute if this is a VM.

    Raises:
        _StepError: the metadata server did not take it within `seconds`, so the laptop cannot know.
    """
    _print(status)
    if server := os.environ.get(METADATA_VARIABLE):
        _put(server, json.dumps(status).encode(), deadline=time.monotonic() + seconds)


def _print(status: dict[str, Any]) -> None:
    sys.stdout.write(f"hvdcloud-status {json.dumps(status)}\n")
    sys.stdout.flush()


def _put(server: str, body: bytes, *, deadline: float) -> None:
    """Set the guest attribute, and try again while the server is busy or does not answer. Raises _StepError: it
    refused, or the time is up."""
    while True:
        connection = http.client.HTTPConnection(urlsplit(server).netloc, timeout=5)
        try:
            connection.request("PUT", _ATTRIBUTE, body=body, headers={"Metadata-Flavor": "Google"})
            response = connection.getresponse()
            said = f"{response.status} {response.read(200).decode(errors='replace').strip()}"
            if response.status < 300:
                return
            final = response.status < 500 and response.status != 429
        except (OSError, http.client.HTTPException) as error:
            said, final = str(error) or type(error).__name__, False
        finally:
            connection.close()
        if signal.sigpending() & _TOLD_TO_END:
            return
        if final or time.monotonic() >= deadline:
            raise _StepError(_METADATA_STEP, f"{server} does not take the node's status: {said}")
        time.sleep(_AGAIN_SECONDS)


def _fail(error: _StepError) -> int:
    status = {"status": "failed", "step": error.step, "error": str(error)}
    if error.refused:
        status["refused"] = error.refused
    if error.step == _METADATA_STEP:
        _print(status)
        return 1
    try:
        publish(status)
    except _StepError as unheard:
        sys.stderr.write(f"{unheard}\n")
    return 1


def _step(name: str, action: Any) -> Any:
    try:
        return action()
    except (OSError, ValueError) as error:
        raise _StepError(name, str(error)) from error


def _authorize() -> None:
    if not (given := os.environ.get("HVDCLOUD_AUTHORIZED_KEY", "").strip().splitlines()):
        raise ValueError("HVDCLOUD_AUTHORIZED_KEY holds no public key")
    folder = paths.ssh_dir()
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    file = folder / "authorized_keys"
    # A restarted node keeps the mesh key that `join` put there.
    lines = file.read_text().splitlines() if file.exists() else []
    if new := [line for line in given if line not in lines]:
        file.write_text("".join(f"{each}\n" for each in [*new, *lines]))
    file.chmod(0o600)


def _write_node_file() -> None:
    cores = os.environ.get("HVDCLOUD_CORES")
    # SSH sessions do not see the container's environment.
    facts = {
        "name": os.environ.get("HVDCLOUD_NODE") or socket.gethostname(),
        "cores": int(cores) if cores else None,
        "ssh_port": _ssh_port(),
        "environment": {name: value for name, value in _without_our_own().items() if name not in _NOT_THE_IMAGES},
        "metadata": os.environ.get(METADATA_VARIABLE),
    }
    write_json(paths.node_file(), facts, mode=0o600)


def _without_our_own() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("HVDCLOUD_")}


def _forget_dead_runs() -> None:
    """Delete the secrets and sockets of runs, which have all ended when the container starts again."""
    shutil.rmtree(paths.volatile_dir(), ignore_errors=True)
    paths.volatile_dir().mkdir(mode=0o700, parents=True, exist_ok=True)
    # At a restart runc gives the tmpfs the mode of the folder that it is mounted on, not the one that was asked for:
    # https://github.com/opencontainers/runc/blob/v1.1.5/libcontainer/rootfs_linux.go
    paths.volatile_dir().chmod(0o700)


def _host_key() -> str:
    if not HOST_KEY.exists():
        _call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(HOST_KEY))
    kind, key = HOST_KEY.with_name(HOST_KEY.name + ".pub").read_text().split()[:2]
    return f"{kind} {key}"


def _find_driver() -> None:
    """Let SSH sessions and ranks find a mounted GPU driver: its libraries by the loader's cache, nvidia-smi by PATH."""
    if DRIVER.is_dir():
        _call(LDCONFIG)
        os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}:{DRIVER.with_name('bin')}"


def _call(*program: str) -> None:
    child = os.posix_spawnp(program[0], program, os.environ, setsigmask=())
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0:
        raise OSError(f"{program[0]} failed")


def _ssh_port() -> int:
    return int(os.environ.get(PORT_VARIABLE) or paths.SSH_PORT)


def _addresses() -> list[str]:
    """Where sshd listens; empty: everywhere."""
    address = os.environ.get(ADDRESS_VARIABLE)
    return ["127.0.0.1", address] if address else []


def _check_port() -> None:
    """Raises OSError: another program of the machine has sshd's port. sshd itself would only say so in its log."""
    for address in _addresses():
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            # As sshd does: connections that have ended hold no port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, _ssh_port()))
            except OSError as error:
                raise OSError(error.errno, f"{address}:{_ssh_port()}: {error.strerror}") from error


def _start_sshd() -> int:
    Path("/run/sshd").mkdir(parents=True, exist_ok=True)
    # Without it, sshd complains in every terminal that logs in.
    with contextlib.suppress(OSError):
        LAST_LOGINS.touch()
    # The key in this environment is public, but sessions have no use for it.
    command = [SSHD, "-D", "-e", "-f", str(SSHD_CONFIG), "-p", str(_ssh_port())]
    command += [f"-oListenAddress={address}" for address in _addresses()]
    if path := _path_of_image():
        command.append(f"-oSetEnv=PATH={path}")
    return os.posix_spawn(SSHD, command, _without_our_own(), setsigmask=(), setsigdef=[signal.SIGPIPE])


def _path_of_image() -> str:
    """The PATH of sessions, so that `hvdcloud ssh 0 python` is the image's; empty: sshd's own.

    A login shell reads /etc/profile, which sets another one; one for a person begins where the project's code is.
    """
    path = os.environ.get("PATH", "")
    # Neither sshd's configuration nor a shell reads any other text as it is.
    if not _PLAIN_PATH.fullmatch(path):
        return ""
    if PROFILES.is_dir():
        (PROFILES / "hvdcloud.sh").write_text(f"PATH={path}\nexport PATH\n{_TO_WORKSPACE}")
    return path


def _fetch_data() -> None:
    """Start the fetcher of data sets, in a process of its own: where it fails, a run starts it again, and says so."""
    if request := os.environ.get(DATA_VARIABLE):
        _start("data-fetcher", request, output=os.devnull)


def _wait_until_ready(sshd: int) -> bool:
    """Wait for sshd's banner; False if a signal to end comes first. Raises _StepError: sshd ended, or the time is
    up."""
    deadline = time.monotonic() + READY_SECONDS
    while not _answers():
        if sshd in _reap():
            raise _StepError("sshd", "sshd ended at once; its reason is on standard error")
        if time.monotonic() >= deadline:
            raise _StepError("sshd", f"no banner on port {_ssh_port()} within {READY_SECONDS:.0f} s")
        if signal.sigtimedwait(_TOLD_TO_END, _POLL_SECONDS) is not None:
            return False
    return True


def _prove_bucket() -> bool:
    """Wait until this node has written and read an object of its bucket; False if a signal to end comes first.

    Raises _StepError: it could not.
    """
    while os.environ.get(BUCKET_VARIABLE):
        answer = _proof()
        if answer is None:
            return False
        if "ok" in answer:
            break
        error = _StepError("bucket", str(answer.get("error")), refused=str(answer.get("refused") or ""))
        if not error.refused or time.time() >= float(os.environ.get(SETTLED_VARIABLE) or 0):
            raise error
        publish({"status": "not allowed to use the bucket yet"})
        if signal.sigtimedwait(_TOLD_TO_END, REFUSED_PAUSE_SECONDS) is not None:
            return False
    return True


def _proof() -> dict[str, Any] | None:
    """The answer of `bucket-proof`, a process of its own: Google's library stays out of this one. None: told to end."""
    file = paths.volatile_dir() / "bucket-proof.json"
    child = _start("bucket-proof", output=str(file))
    while child not in _reap():
        if signal.sigtimedwait(_TOLD_TO_END, _PROOF_POLL_SECONDS) is not None:
            return None
    return parse_object(file.read_text()) or {
        "error": "the proof ended without an answer; its reason is on standard error"
    }


def _answers() -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", _ssh_port()), timeout=1) as connection:
        return connection.recv(4).startswith(b"SSH-")
    return False


def _reap() -> set[int]:
    """Collect every child that has ended; the first process inherits all orphans of the container."""
    ended = set()
    with contextlib.suppress(ChildProcessError):
        while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
            ended.add(pid)
    return ended


def _power_off(sshd: int) -> int:
    """End everything, at once where no run is active; else once what is on this node only was sent to the bucket, also
    the logs of its runs."""
    for step, what in ((drain.upload_before_the_end, "the checkpoints"), (control.wait_for_logs, "the logs of runs")):
        try:
            step()
        except Exception as error:  # noqa: BLE001 - a container that got SIGTERM ends, whatever is broken in it
            sys.stderr.write(f"hvdcloud: {what} were not waited for: {type(error).__name__}: {error}\n")
    _print({"status": "ended", "complete": drain.is_all_in_bucket()})
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1 if os.getpid() == 1 else sshd, signal.SIGKILL)
    return 0
