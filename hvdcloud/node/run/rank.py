"""`rank`: what the launcher starts for each rank; it starts the user's command and tells the agent how that ended.

A rank never runs without an agent on its node: the agent is what ends the rank when the head, the launcher or the
connection is gone. If the agent itself goes, the rank ends its command.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace

from hvdcloud.errors import NodeError
from hvdcloud.node import machine, paths, processes
from hvdcloud.node.channel import Channel
from hvdcloud.node.mesh.nodes import mesh_interface
from hvdcloud.node.monitor import waits
from hvdcloud.node.records.secrets_file import read_environment
from hvdcloud.node.records.spec import Spec
from hvdcloud.node.run.launcher import LAUNCH_AGENT
from hvdcloud.node.run.log import FRAME_BYTES, framed
from hvdcloud.runs.reports import RankRecord

AGENT_SECONDS = 15.0
"""How long a rank waits for its node's agent: the launcher may be faster than the supervisor's ssh."""
TERM_DELAY_SECONDS = 0.5
"""The launcher sends SIGTERM as soon as one rank fails, which may be but a consequence: a rank that is about to exit
with a code of its own gets this long. What really ends the run is the agent's word."""
_RANK_VARIABLES = {
    "horovod": ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK"),
    "torchrun": ("RANK",),
    "each": ("HVDCLOUD_NODE_RANK",),
}
_INTERFACES = ("HOROVOD_GLOO_IFACE", "NCCL_SOCKET_IFNAME")
"""Where Gloo and NCCL are told the interface to the other nodes (horovod/runner/gloo_run.py)."""
_LOOPBACK = "lo"
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_CARRIER = "output"
NOT_FOUND = 127
NOT_EXECUTABLE = 126


def main(run: str) -> int:
    """Run the user's command as one rank.

    Returns:
        Its exit code, 128 + N if signal N ended it, 127 if it was not found.

    Raises:
        UsageError: the run has ended or was not prepared here.
        NodeError: no agent runs on this node.
    """
    environment = read_environment(run)
    spec = Spec.load(run)
    rank = int(next((os.environ[name] for name in _RANK_VARIABLES[spec.launcher] if name in os.environ), "0"))
    wakeup = _catch_signals()
    processes.adopt_orphans()
    image = machine.image_environment()
    launcher = with_own_interface({name: os.environ[name] for name in os.environ if name != LAUNCH_AGENT})
    full = environment_of_rank(spec, user=environment, launcher=launcher, image=image)
    full |= waits.environment(run)
    agent = _meet_agent(run, rank)
    if spec.elastic:
        threading.Thread(target=_end_with_launcher, name="launcher", daemon=True).start()
    end, until = _run(spec, full, rank=rank, agent=agent, wakeup=wakeup)
    if until is None:
        _say_ended(agent, end)
        # What the command leaves in the background would hold its outputs, and outlive the run.
        processes.end_descendants()
    else:
        # A shell ends at once, and leaves the program that has something to save.
        processes.end_descendants(seconds=max(0.0, until - time.monotonic()))
    for carrier in (each for each in threading.enumerate() if each.name == _CARRIER):
        carrier.join()
    if until is not None:
        _say_ended(agent, end)
    if until is not None or (spec.launcher == "torchrun" and end.exit_code):
        # torchrun would write a report of its own about a rank that fails. The supervisor ends it.
        _wait_for_the_others(agent, wakeup)
        return 0
    return end.exit_code or 0


def _say_ended(agent: Channel, end: RankRecord) -> None:
    agent.send({"type": "ended", **replace(end, ended=time.time()).to_json()})


def _wait_for_the_others(agent: Channel, wakeup: int) -> None:
    """Stay until the run ends: the launcher ends all ranks when one has failed, and others may still save."""
    while not agent.closed:
        ready, _, _ = select.select([agent.read_fd, wakeup], [], [])
        if wakeup in ready and signal.SIGTERM in os.read(wakeup, 64):
            return
        if agent.read_fd in ready:
            agent.receive()


def with_own_interface(launcher: Mapping[str, str]) -> dict[str, str]:
    """Horovod's environment with this node's network interface: it gives all ranks the name that the head's has."""
    own = mesh_interface()
    given = launcher.get(_INTERFACES[0], _LOOPBACK)
    changed = {} if _LOOPBACK in (own, given) else dict.fromkeys(_INTERFACES, own)
    return {**launcher, **changed}


def environment_of_rank(
    spec: Spec,
    *,
    user: Mapping[str, str],
    launcher: Mapping[str, str],
    image: Mapping[str, str],
) -> dict[str, str]:
    """What the user's command sees: the image's variables, over them the launcher's, over them the user's."""
    paths_of_ours = {"HVDCLOUD_CHECKPOINT_DIR": str(paths.checkpoints_dir(spec.run)), paths.RUN_VARIABLE: spec.run}
    if spec.data is not None:
        paths_of_ours["HVDCLOUD_DATA"] = str(paths.data_dir())
    defaults = {"OMP_NUM_THREADS": str(spec.threads), "PYTHONUNBUFFERED": "1"}
    if spec.stuck is not None and spec.launcher == "horovod":
        # Before the run is taken to be stuck, Horovod says for which tensors ranks wait. It ends no run itself, unless
        # HOROVOD_STALL_SHUTDOWN_TIME_SECONDS is set.
        defaults["HOROVOD_STALL_CHECK_TIME_SECONDS"] = f"{stall_check_seconds(spec.stuck):.0f}"
    own = {"HOSTNAME": socket.gethostname(), "PWD": str(paths.workspace())}
    return {**defaults, **image, **launcher, **own, **user, **paths_of_ours}


def stall_check_seconds(limit: float) -> float:
    """After how long Horovod itself says which tensors some ranks wait for: before the run is taken to be stuck.

    Horovod looks once in that time, so that its warning comes after up to four times as long, since the tensors of a
    training loop are in its cache: the first look does not find them old enough, the second one takes them out of the
    cache, the third one is a few microseconds too early, and the fourth one warns (`Controller::ComputeResponseList`
    and `StallInspector::CheckForStalledTensors` in horovod/common of Horovod 0.28.1).
    """
    return min(60.0, max(1.0, limit / 6))


def _meet_agent(run: str, rank: int) -> Channel:
    """Connect to this node's agent and wait for its word to go. Raises NodeError: no answer in time, or the run is
    ending."""
    deadline = time.monotonic() + AGENT_SECONDS
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    while True:
        try:
            connection.connect(str(paths.agent_socket(run)))
            break
        except (FileNotFoundError, ConnectionRefusedError):
            # The environment's file goes when the run ends: do not outlive it.
            if time.monotonic() > deadline or not paths.env_file(run).exists():
                why = f"rank {rank} was not started: run {run} has no agent on this node"
                raise NodeError(why, hint="hvdcloud run again") from None
            time.sleep(0.05)
    descriptor = connection.detach()
    channel = Channel(descriptor)
    host = os.environ.get("HOROVOD_HOSTNAME")
    channel.send({"type": "rank", "rank": rank, "pid": os.getpid(), "host": host})
    while time.monotonic() < deadline:
        select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        if any(message.get("type") == "go" for message in channel.receive()):
            return channel
        if channel.closed:
            break
    raise NodeError(f"rank {rank} was not started: run {run} is ending", hint="hvdcloud run again")


def _catch_signals() -> int:
    """Let signals arrive as bytes on the returned descriptor; from here on none ends this process by itself."""
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (*_FORWARDED, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    return reader


def _run(
    spec: Spec, environment: dict[str, str], *, rank: int, agent: Channel, wakeup: int
) -> tuple[RankRecord, float | None]:
    """Start the command and stay until it has ended. It gets SIGTERM once, whoever asks for its end and how often; what
    it has started gets its own when it has ended.

    Returns:
        how it ended; and where the agent asked for that, until when what it has left may go on, in monotonic seconds.
    """
    killed_before = machine.killed_for_memory()
    try:
        child = _start(spec, environment, rank=rank)
    except FileNotFoundError:
        _say(f"command not found: {spec.command[0]}")
        return RankRecord(rank=rank, exit_code=NOT_FOUND, terminated=False), None
    except OSError as error:
        _say(f"cannot run {spec.command[0]}: {error.strerror}")
        return RankRecord(rank=rank, exit_code=NOT_EXECUTABLE, terminated=False), None
    agent.send({"type": "started", "child": child})
    term_at: float | None = None
    kill_at: float | None = None
    until: float | None = None
    terminated = False
    watched = [wakeup, agent.read_fd]
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        next_at = min((at for at in (term_at, kill_at) if at is not None), default=None)
        ready, _, _ = select.select(watched, [], [], None if next_at is None else max(0.0, next_at - time.monotonic()))
        if wakeup in ready:
            for number in os.read(wakeup, 64):
                if number == signal.SIGTERM:
                    term_at = term_at or time.monotonic() + TERM_DELAY_SECONDS
                elif number in _FORWARDED:
                    _signal_group(child, number)
        if agent.read_fd in ready:
            for message in agent.receive():
                if message.get("type") == "terminate":
                    term_at = time.monotonic()
                    kill_at = until = term_at + float(message["seconds"])
            if agent.closed:
                watched = [wakeup]
                _say("this node's agent is gone: the rank ends")
                term_at = time.monotonic()
                kill_at = kill_at or term_at + processes.GRACE_SECONDS
        if term_at is not None and time.monotonic() >= term_at:
            if not terminated:
                os.kill(child, signal.SIGTERM)
                # A stopped process would sit on its SIGTERM.
                _signal_group(child, signal.SIGCONT)
            term_at, terminated = None, True
        if kill_at is not None and time.monotonic() >= kill_at:
            _signal_group(child, signal.SIGKILL)
            kill_at = time.monotonic() + processes.GRACE_SECONDS
    code = os.waitstatus_to_exitcode(status)
    if code == NOT_FOUND and len(spec.command) == 1:
        _say(f"command not found: {spec.command[0]}")
    exit_code, by_signal = (128 - code, -code) if code < 0 else (code, None)
    # A shell that ran the command reports its signal as an exit code.
    killed = exit_code == 128 + signal.SIGKILL and not terminated
    out_of_memory = killed and machine.killed_for_memory() > killed_before
    end = RankRecord(
        rank=rank, exit_code=exit_code, signal=by_signal, terminated=terminated, out_of_memory=out_of_memory
    )
    return end, until


def _start(spec: Spec, environment: dict[str, str], *, rank: int) -> int:
    """Start the command in /workspace, in a session of its own, so that a signal reaches all of it, and what carries
    its output. Raises FileNotFoundError: there is no such program; OSError: it cannot be run."""
    os.chdir(paths.workspace())
    path, command = environment.get("PATH", os.defpath), spec.command
    argv = shell(command[0], path=path) if len(command) == 1 else list(command)
    program = argv[0] if "/" in argv[0] else which(argv[0], path)
    outputs = {descriptor: os.pipe() for descriptor in (1, 2)}
    streams = [(os.POSIX_SPAWN_DUP2, writer, descriptor) for descriptor, (_, writer) in outputs.items()]
    caught = [*_FORWARDED, signal.SIGCHLD, signal.SIGPIPE]
    child = os.posix_spawn(
        program, argv, environment, file_actions=streams, setsid=True, setsigmask=(), setsigdef=caught
    )
    for descriptor, (reader, writer) in outputs.items():
        os.close(writer)
        # horovodrun tells the lines of its ranks apart itself.
        tag = b"" if spec.launcher == "horovod" else b"[%d]<std%b>:" % (rank, b"out" if descriptor == 1 else b"err")
        threading.Thread(target=_carry, args=(reader, descriptor, tag), name=_CARRIER, daemon=True).start()
    return child


def _carry(source: int, target: int, tag: bytes) -> None:
    """Pass on what the command writes, in frames. If that ends, the command must not wait for it: it gets SIGPIPE."""
    # The launcher may be gone.
    with contextlib.suppress(BrokenPipeError), open(source, "rb", buffering=0) as output:
        while data := output.read(FRAME_BYTES):
            frame = tag + framed(data)
            while frame:
                # A signal may cut a write to mpirun's pseudo-terminal short.
                frame = frame[os.write(target, frame) :]


def shell(text: str, *, path: str) -> list[str]:
    """The words that run a command's text: by the interpreter that its first line names, else by bash, where there is
    none by sh. Line ends may be those of Windows."""
    text = text.replace("\r\n", "\n").lstrip()
    named = text[2:].partition("\n")[0].split() if text.startswith("#!") else []
    return [*(named or [shutil.which("bash", path=path) or "/bin/sh"]), "-c", text]


def which(name: str, path: str) -> str:
    """The program of this name. Raises FileNotFoundError: no folder of `path` has it."""
    if (found := shutil.which(name, path=path)) is None:
        raise FileNotFoundError(name)
    return found


def _end_with_launcher() -> None:
    """End the rank when its output is no longer read. Horovod's elastic driver ends a worker by ending the ssh that it
    started it with, and the worker notices nothing else. (In other runs that is the end of the run, and the agent's
    business.)"""
    watch = select.poll()
    # Of the writing end of a pipe this tells that the reading end is gone; a file or a terminal never does.
    watch.register(1, 0)
    watch.poll()
    os.kill(os.getpid(), signal.SIGTERM)


def _signal_group(leader: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, number)


def _say(text: str) -> None:
    # Unless the launcher is gone, and with it the log.
    with contextlib.suppress(OSError):
        sys.stderr.write(f"hvdcloud: {text}\n")
        sys.stderr.flush()
