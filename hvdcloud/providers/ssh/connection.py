"""A host, and the one SSH connection to it, over which its Docker engine is asked and programs are run there."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdcloud.attempts import login_attempts
from hvdcloud.errors import CredentialsError, HvdcloudError, NodeError, UsageError
from hvdcloud.providers.engine import facts
from hvdcloud.providers.ssh import openssh
from hvdcloud.visible import words

if TYPE_CHECKING:
    from docker import DockerClient

    from hvdcloud.config.ssh_hosts import SshHostConfig
    from hvdcloud.providers.engine.facts import Facts

OPEN_SECONDS = 45.0
"""For a connection, also through another host, until the first command can be run."""
ANSWER_SECONDS = 60
"""For which one request to the engine may be silent."""
COMMAND_SECONDS = 30.0
RETRY_SECONDS = 20.0
"""For so long a host that did not answer is not asked again."""
ENGINE_SOCKET = "/var/run/docker.sock"
_POLL_SECONDS = 0.02
_CONTROL = "control"
_SOCKET_STATE = f"""\
if [ ! -S {ENGINE_SOCKET} ]; then echo missing
elif [ -r {ENGINE_SOCKET} ] && [ -w {ENGINE_SOCKET} ]; then echo usable
else echo denied; fi
id -un
"""


class Host:
    """A host, connected on first use, and again after the connection broke. Safe to use from several threads."""

    def __init__(self, config: SshHostConfig) -> None:
        self.config = config
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._clients: dict[int, DockerClient] = {}
        self._failed: tuple[float, HvdcloudError] | None = None

    @property
    def name(self) -> str:
        """The host's, as the configuration has it."""
        return self.config.host

    @property
    def control(self) -> Path | None:
        """The socket of the connection, if it is open."""
        folder = self._folder
        return folder / _CONTROL if folder is not None else None

    @property
    def api(self) -> Any:
        """As `engine`."""
        return self.engine()

    def engine(self, *, silence: int = ANSWER_SECONDS) -> Any:
        """docker-py's APIClient of the host's engine.

        Args:
            silence: seconds for which one request may be silent.

        Raises:
            CredentialsError: the host key is not known or another, or the host or its engine refuses this user.
            NodeError: the host does not answer, or has no engine.
        """
        import docker
        from docker.errors import DockerException

        with self._lock:
            self._open()
            assert self._folder is not None
            if silence not in self._clients:
                try:
                    client = docker.DockerClient(base_url=f"unix://{self._folder / 'engine'}", timeout=silence)
                except (DockerException, OSError) as error:
                    raise self._why_no_engine(error) from error
                self._clients[silence] = client
            return self._clients[silence].api

    def run(self, script: str, *, seconds: float = COMMAND_SECONDS) -> str:
        """What a script for the host's `sh` prints. Raises as `engine`, and NodeError: it fails or takes too long."""
        with self._lock:
            self._open()
        return self._run(script, seconds)

    def facts(self) -> Facts:
        """What it says of itself now, also of its GPUs if nodes get any. Raises as `engine`."""
        said = self.run(facts.script(ask_gpus=self.config.gpus is not None))
        return facts.parse(said, address=self.config.address)

    def by_hand(self, remote: str = "") -> str:
        """What a user types to run a command there."""
        return openssh.by_hand(self.config, remote)

    @contextlib.contextmanager
    def reverse(self, port: int) -> Iterator[int]:
        """The port of the host's loopback interface that leads to one of this machine's during the block.

        Raises as `engine`, and NodeError: the host's sshd allows none.
        """
        with self._lock:
            self._open()
            assert self._folder is not None
            control, ports = self._folder / _CONTROL, ("-R", f"127.0.0.1:0:127.0.0.1:{port}")
        try:
            # It prints the host's port.
            there = int(self._call(openssh.forwarding(control, "forward", *ports), seconds=COMMAND_SECONDS))
        except (NodeError, ValueError) as error:
            message = f"{self.name} forwards no port to this machine: {words(error)}"
            raise NodeError(message, hint="AllowTcpForwarding yes in its sshd_config") from error
        try:
            yield there
        finally:
            # A connection that was lost has ended it.
            with contextlib.suppress(HvdcloudError):
                self._call(openssh.forwarding(control, "cancel", *ports), seconds=COMMAND_SECONDS)

    def close(self) -> None:
        """End the connection, also one that is being made; nothing of it is left on either side."""
        self._closing.set()
        with self._lock:
            self._end()

    # --- all below has the lock ---------------------------------------------------------------------------------------

    def _open(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        if self._failed is not None and time.monotonic() - self._failed[0] < RETRY_SECONDS:
            error = self._failed[1]
            # Not the same one again: callers add to its details.
            raise type(error)(error.message, hint=error.hint, details=error.details)
        self._end()
        try:
            self._connect()
        except HvdcloudError as error:
            self._failed = (time.monotonic(), error)
            self._end()
            raise
        self._failed = None

    def _connect(self) -> None:
        from tenacity import retry_if_exception_type

        if shutil.which(openssh.PROGRAM) is None:
            raise UsageError("there is no ssh on this machine", hint="install the OpenSSH client")
        # Only this user may look into it. The state folder's path may be too long for a socket, or on a disk without.
        self._folder = folder = Path(tempfile.mkdtemp(prefix="hvdcloud-", dir="/tmp"))
        control = folder / _CONTROL
        deadline = time.monotonic() + OPEN_SECONDS
        busy = retry_if_exception_type(openssh.BusyError)
        attempts = login_attempts(busy, seconds=OPEN_SECONDS, closing=self._closing)
        attempts(self._log_in, openssh.shared_connection(self.config, control), folder, deadline)
        sockets = f"{folder / 'engine'}:{ENGINE_SOCKET}"
        self._call(openssh.forwarding(control, "forward", "-L", sockets), seconds=COMMAND_SECONDS)

    def _log_in(self, argv: Sequence[str], folder: Path, deadline: float) -> None:
        """Start the program that keeps the connection. Raises BusyError: the host may take the next one."""
        with (folder / "said").open("wb") as said:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=said,
                env=_environment(),
                cwd="/",
                # Ctrl-C must not cut what is still needed to tidy up. Without a terminal it can ask nothing.
                start_new_session=True,
            )
        # ssh makes the socket as soon as it has logged in.
        while not (folder / _CONTROL).exists():
            if self._closing.is_set():
                raise NodeError(f"the connection to {self.name} was given up", hint="the same command again")
            if self._process.poll() is not None:
                assert self._process.stdin is not None
                self._process.stdin.close()
                raise openssh.explain(self.config, (folder / "said").read_text(errors="replace"))
            if time.monotonic() > deadline:
                raise NodeError(
                    f"{self.name} did not answer by SSH within {OPEN_SECONDS:.0f} s",
                    hint=f"{self.by_hand()} shows where it waits",
                )
            time.sleep(_POLL_SECONDS)

    def _why_no_engine(self, error: Exception) -> HvdcloudError:
        state, user, *_ = [*self._run(_SOCKET_STATE, COMMAND_SECONDS).split(), "", ""]
        who = words(user) or "this user"
        if state == "denied":
            return CredentialsError(
                f"{who} may not use the Docker engine of {self.name}: permission denied on {ENGINE_SOCKET}",
                hint=self.by_hand(f"sudo usermod -aG docker {self.config.user or '$USER'}")
                + ", then again with a new login",
            )
        why = f"{ENGINE_SOCKET} does not exist there" if state == "missing" else words(error)
        return NodeError(
            f"no Docker engine answers on {self.name}: {why}",
            hint=self.by_hand("sudo systemctl start docker") + " starts it, if it is installed there",
        )

    def _run(self, script: str, seconds: float) -> str:
        assert self._folder is not None
        return self._call(openssh.command(self.config, self._folder / _CONTROL, ["sh"]), stdin=script, seconds=seconds)

    def _call(self, argv: Sequence[str], *, seconds: float, stdin: str = "") -> str:
        try:
            done = subprocess.run(
                argv,
                input=stdin,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
                env=_environment(),
                cwd="/",
                check=False,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            raise NodeError(
                f"{self.name} did not answer within {seconds:.0f} s",
                hint=f"{self.by_hand()} shows whether it is frozen",
            ) from None
        if done.returncode != 0:
            raise openssh.explain(self.config, done.stderr or f"exit code {done.returncode}")
        return done.stdout

    def _end(self) -> None:
        for client in self._clients.values():
            with contextlib.suppress(OSError):
                client.close()
        self._clients = {}
        if self._process is not None:
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def _environment() -> dict[str, str]:
    """Without a program that asks for passwords in a window."""
    return {**os.environ, "SSH_ASKPASS_REQUIRE": "never"}
