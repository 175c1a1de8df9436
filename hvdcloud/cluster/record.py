"""What this machine remembers of a cluster: keys, pinned host keys, a journal. Never needed to delete it.

`$XDG_STATE_HOME/hvdcloud/CLUSTER/` (default `~/.local/state`), or below `$HVDCLOUD_STATE_DIR`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hvdcloud.errors import CapacityError, UsageError


def state_root() -> Path:
    """The folder that holds one folder per cluster."""
    if given := os.environ.get("HVDCLOUD_STATE_DIR"):
        return Path(given).absolute()
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "hvdcloud"


def default_bucket(name: str) -> str:
    """The folder that stands in for a bucket when none is configured. It outlives the cluster."""
    return (state_root() / name / "bucket").as_uri()


def write_private(path: Path, data: str) -> None:
    """Replace a file in one move; only its owner may read it.

    Raises:
        CapacityError: the disk is full.  UsageError: the file may not be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with _explained(path):
        try:
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def held(file: int, command: str, *, what: str, hint: str) -> Iterator[None]:
    """Hold a lock during the block and say who does. It goes with the process, so a killed one leaves none behind.

    Args:
        file: open to read and write; closed at the end.
        command: who holds it, for the others' message.
        what: for that message: what nobody else may do meanwhile.

    Raises:
        UsageError: another process holds it.
    """
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(file, 1000).decode(errors="replace").strip() or "another command"
            raise UsageError(f"{what} by {holder}", hint=hint) from None
        os.truncate(file, 0)
        # Who holds it is good to know; a full disk does not keep the lock from holding.
        with contextlib.suppress(OSError):
            os.write(file, f"`hvdcloud {command}` (process {os.getpid()})".encode())
        try:
            yield
        finally:
            os.truncate(file, 0)
    finally:
        os.close(file)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """The file system's errors as ours."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise CapacityError(
                f"no space left to write {path}",
                hint="free some space, or name a folder on another disk with HVDCLOUD_STATE_DIR",
            ) from error
        raise UsageError(
            f"{path} cannot be written: {error.strerror or error}",
            hint="make it writable, or name another folder with HVDCLOUD_STATE_DIR",
        ) from error


class Journal:
    """What was about to be done, written and synced before it is done.

    A killed command leaves its last intention here, with the `request_id` that makes repeating it safe.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def record(self, event: str, **fields: object) -> None:
        """Append one line and wait until the disk has it.

        Raises:
            CapacityError: the disk is full.  UsageError: the file may not be written.
        """
        line = json.dumps({"time": time.time(), "event": event, **fields}) + "\n"
        with _explained(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def entries(self) -> list[dict[str, Any]]:
        """Every whole line; a line cut off by a crash is left out."""
        if not self._path.exists():
            return []
        found = []
        for line in self._path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                found.append(json.loads(line))
        return found

    def knows(self, cluster_id: str) -> bool:
        """Whether this cluster was begun from here."""
        return any(entry.get("cluster_id") == cluster_id for entry in self.entries())

    def unfinished_up(self, cluster_id: str) -> bool:
        """Whether an `up` of this cluster was begun from here and neither finished nor undone."""
        events = [entry["event"] for entry in self.entries() if entry.get("cluster_id") == cluster_id]
        return "up" in events and not {"up-done", "up-undone", "down-done"} & set(events)

    def cut_off_create(self, *, seconds: float) -> str | None:
        """The cluster id of the newest `up`, if it was killed while it made things, at most so many seconds ago.

        What it had asked for by then may not be there yet.
        """
        entries = [entry for entry in self.entries() if "cluster_id" in entry]
        begun = [str(entry["cluster_id"]) for entry in entries if entry["event"] == "up"]
        if not begun or not self.unfinished_up(begun[-1]):
            return None
        own = [entry for entry in entries if entry["cluster_id"] == begun[-1]]
        created = any(entry["event"] == "created" for entry in own)
        return None if created or time.time() - own[-1]["time"] > seconds else begun[-1]


class ClusterState:
    """The folder of one cluster.

    Args:
        name: the cluster's name.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.dir = state_root() / name
        self.journal = Journal(self.dir / "journal.jsonl")

    @property
    def key_file(self) -> Path:
        """The private key that opens the nodes, 0600."""
        return self.dir / "id_ed25519"

    @property
    def mesh_key_file(self) -> Path:
        """The private key with which the nodes reach each other, 0600: nodes that come later need it too."""
        return self.dir / "mesh_ed25519"

    @property
    def known_hosts(self) -> Path:
        """The nodes' host keys, pinned when the cluster came up."""
        return self.dir / "known_hosts"

    @property
    def ssh_config(self) -> Path:
        """For `ssh -F`: one Host block per node."""
        return self.dir / "ssh_config"

    @property
    def verified_files(self) -> Path:
        """Which checkpoints were verified on this machine's disk."""
        return self.dir / "verified.json"

    def make(self) -> None:
        """Create the folder, readable by its owner only.

        Raises:
            CapacityError: the disk is full.  UsageError: the folder may not be made.
        """
        with _explained(self.dir):
            self.dir.mkdir(parents=True, exist_ok=True, mode=0o700)

    def save(self, facts: dict[str, Any]) -> None:
        """Remember what `up` learned about the cluster and its nodes."""
        write_private(self.dir / "cluster.json", json.dumps(facts, indent=2) + "\n")

    def load(self) -> dict[str, Any]:
        """What `save` was given; empty if there is nothing or it cannot be read."""
        try:
            facts = json.loads((self.dir / "cluster.json").read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError):
            return {}
        return facts if isinstance(facts, dict) else {}

    def forget(self) -> None:
        """The cluster is gone: drop its keys and facts. The journal, the ledger and the folder bucket stay."""
        for key in (self.key_file, self.mesh_key_file):
            key.unlink(missing_ok=True)
            key.with_suffix(".pub").unlink(missing_ok=True)
        for path in (self.known_hosts, self.ssh_config):
            path.unlink(missing_ok=True)
        (self.dir / "cluster.json").unlink(missing_ok=True)
        shutil.rmtree(self.dir / "tmp", ignore_errors=True)

    @contextlib.contextmanager
    def lock(self, command: str, *, required: bool = True) -> Iterator[None]:
        """Keep other commands on this machine from changing the same cluster meanwhile.

        The lock goes with the process, so a killed command never leaves one behind.

        Args:
            command: who holds it, for the others' message.
            required: False: go on without one where no file can be made.

        Raises:
            UsageError: another process holds it, or no file may be made.  CapacityError: the disk is full.
        """
        try:
            self.make()
            with _explained(self.dir / "lock"):
                file = os.open(self.dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except (CapacityError, UsageError):
            if required:
                raise
            yield
            return
        with held(
            file,
            command,
            what=f"cluster {self.name} is being changed",
            hint=f"wait for it to end; hvdcloud status --name {self.name} shows how far it is",
        ):
            yield
