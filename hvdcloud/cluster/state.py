"""The state folder of one cluster: keys, pinned host keys, record, journal. Never needed to delete the cluster."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict

from hvdcloud.cluster.files import (
    check_folder,
    explained,
    held,
    make_folder,
    open_private,
    read_private,
    state_root,
    write_private,
)
from hvdcloud.cluster.journal import Journal
from hvdcloud.cluster.model import Cluster
from hvdcloud.cluster.record import ClusterRecord
from hvdcloud.errors import CapacityError, UsageError


class ClusterState:
    """The folder of the cluster with this name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dir = state_root() / name
        self.journal = Journal(self.dir / "journal.jsonl")
        self.key_file = self.dir / "id_ed25519"
        """The private key that opens the nodes, 0600."""
        self.mesh_key_file = self.dir / "mesh_ed25519"
        """The private key with which the nodes reach each other, 0600: nodes that come later need it too."""
        self.known_hosts = self.dir / "known_hosts"
        """The nodes' host keys, pinned when the cluster came up."""
        self.ssh_config = self.dir / "ssh_config"
        """For `ssh -F`: one Host block per node."""
        self.verified_files = self.dir / "verified.json"
        """Which checkpoints were verified on this machine's disk."""
        self._record_file = self.dir / "cluster.json"
        self.silent: set[str] = set()
        """Ids of the nodes that have not answered this command for as long as a node is tried."""

    def make(self) -> None:
        """Create the folder, readable by its owner only; raises what `make_folder` raises."""
        make_folder(self.dir)

    def check(self) -> None:
        """Raise UsageError if the folder is not this user's alone: keys in it may be another's."""
        check_folder(self.dir)

    def save(self, record: ClusterRecord) -> None:
        """Write cluster.json."""
        write_private(self._record_file, json.dumps(asdict(record), indent=2) + "\n")

    def load(self) -> ClusterRecord | None:
        """The record; None if there is none, it cannot be read, or it may be another user's."""
        from pydantic import TypeAdapter  # Here, because most that import this need no pydantic.

        try:
            self.check()
            return TypeAdapter(ClusterRecord).validate_python(json.loads(read_private(self._record_file)))
        except (OSError, ValueError, RecursionError, UsageError):
            return None

    def record_of(self, cluster_id: str) -> ClusterRecord | None:
        """The record of this cluster; None if it belongs to another one of the same name, or does not exist."""
        record = self.load()
        return record if record is not None and record.id == cluster_id else None

    def update(self, change: Callable[[ClusterRecord], ClusterRecord]) -> None:
        """Replace the record, if there is one."""
        record = self.load()
        if record is not None:
            self.save(change(record))

    def forget(self) -> None:
        """Delete the keys and the record of a cluster that is gone; the journal, the list of verified files and the
        folder bucket stay. Nothing is deleted in a folder that may be another's."""
        try:
            self.check()
        except UsageError:
            return
        keys = [self.key_file, self.mesh_key_file]
        public = [key.with_suffix(".pub") for key in keys]
        for path in (*keys, *public, self.known_hosts, self.ssh_config, self._record_file):
            path.unlink(missing_ok=True)
        shutil.rmtree(self.dir / "tmp", ignore_errors=True)

    @contextlib.contextmanager
    def lock(self, command: str, *, required: bool = True) -> Iterator[None]:
        """Keep other commands on this machine from changing the same cluster meanwhile, as `held` does.

        Args:
            command: what holds it, for the others' message.
            required: False: continue without one where no file can be made.

        Raises:
            UsageError: another process holds it, or no file may be made.  CapacityError: the disk is full.
        """
        try:
            self.make()
            with explained(self.dir / "lock"):
                file = open_private(self.dir / "lock", os.O_RDWR | os.O_CREAT)
        except (CapacityError, UsageError):
            if required:
                raise
            yield
            return
        hint = f"wait for it to end; hvdcloud status --name {self.name} shows how far it is"
        with held(file, command, what=f"cluster {self.name} is being changed", hint=hint):
            yield


def as_known_here(cluster: Cluster) -> Cluster:
    """The cluster with what this machine remembers of it."""
    record = ClusterState(cluster.name).load()
    return cluster if record is None else record.applied_to(cluster)
