"""Nodes that have a bucket each, behind SSH: the real node program in a folder per node, and an in-process sshd."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import paramiko

from hvdcloud.node.uploads.uploader import Uploader
from hvdcloud.runs.reports import UploadReport
from hvdcloud.storage.folder import FolderBucket
from tests.support.nodes import start_verb
from tests.support.vanishing import RUN, Program, Vm, says

CHUNK = 1 << 15


@dataclass
class BucketNode:
    """A node's folder, and what its job wrote."""

    root: Path
    index: int
    cut_after: int | None = None
    """Bytes of its answers after which its connection is cut, once."""
    verbs: list[str] = field(default_factory=list)
    programs: dict[str, Program] = field(init=False)
    vm: Vm = field(init=False)

    def __post_init__(self) -> None:
        verbs = ("bucket", "send", "flush", "state", "join", "code", "prepare")
        self.programs = {f"hvdcloud-node {verb}": self._program(verb) for verb in verbs}
        for more in (("--follow", "--offset", "0"), ()):
            self.programs[shlex.join(["hvdcloud-node", "logs", RUN, *more])] = self._program("logs", RUN, *more)
        self.programs["hvdcloud-node poweroff"] = self._power_off
        self.vm = Vm(self.programs)

    @property
    def bucket(self) -> FolderBucket:
        """Its own."""
        return FolderBucket(self.root / "var/lib/hvdcloud/bucket")

    def write(self, files: Mapping[str, bytes], *, run: str = RUN, complete: bool = True) -> UploadReport:
        """The job writes these, and the agent uploads them."""
        directory = self.root / "var/lib/hvdcloud/checkpoints" / run
        for name, data in files.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        uploader = Uploader(
            self.bucket, cluster="digits", run=run, node=self.index, directory=directory, quiet_seconds=0
        )
        return uploader.finish(60) if complete else uploader.scan(final=True)

    def start(self, *verb: str) -> subprocess.Popen[bytes]:
        """The node program, as a process."""
        return start_verb(*verb, root=self.root)

    def _power_off(self, channel: paramiko.Channel) -> None:
        self.verbs.append("poweroff")
        says('{"ok": true}\n')(channel)

    def _sends(self, count: int) -> bool:
        """Whether this many bytes may go; else the connection is to be cut, once."""
        if self.cut_after is not None:
            self.cut_after -= count
            if self.cut_after < 0:
                self.cut_after = None
                return False
        return True

    def _program(self, *verb: str) -> Program:
        return lambda channel: self._serve(verb, channel)

    def _serve(self, verb: tuple[str, ...], channel: paramiko.Channel) -> None:
        process = self.start(*verb)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.verbs.append(verb[0])
        threading.Thread(target=_feed, args=(channel, process), daemon=True).start()
        while data := os.read(process.stdout.fileno(), CHUNK):
            if not self._sends(len(data)):
                process.kill()
                process.wait()
                channel.get_transport().close()
                return
            try:
                channel.sendall(data)
            except OSError:
                # The laptop has heard enough.
                process.kill()
        errors = process.stderr.read()
        process.wait()
        if channel.closed:
            return
        channel.sendall_stderr(errors)
        channel.send_exit_status(process.wait())
        channel.close()


def _feed(channel: paramiko.Channel, process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    # A program that ended reads no more; its pipe also breaks when it is closed with something unwritten.
    with contextlib.suppress(BrokenPipeError, ValueError), process.stdin:
        while data := channel.recv(CHUNK):
            process.stdin.write(data)
            process.stdin.flush()
