"""What the commands of one experiment share: configuration, provider, state, sessions."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import socket
import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from hvdcloud import providers
from hvdcloud.cluster.files import default_bucket
from hvdcloud.cluster.model import leftover_table, not_whole
from hvdcloud.cluster.state import ClusterState, as_known_here
from hvdcloud.errors import HvdcloudError, TeardownError, UsageError
from hvdcloud.providers.base import Stage, UnseenError
from hvdcloud.runs import archive
from hvdcloud.runs.state import RunState
from hvdcloud.storage.open import open_bucket
from hvdcloud.units import counted

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from hvdcloud.cluster.model import Cluster, ClusterSpec, Leftover
    from hvdcloud.cluster.record import ClusterRecord
    from hvdcloud.config.model import Config
    from hvdcloud.console import Console
    from hvdcloud.providers.base import NodeProgress, OnProgress, Platform, Provider
    from hvdcloud.remote.ssh import Fleet
    from hvdcloud.steps import Steps
    from hvdcloud.storage.base import Bucket

STATE_SECONDS = 20.0
"""How long the head may take to tell the state of its runs."""
LATE_SECONDS, PAUSE_SECONDS = 3.0, 0.5
"""How long what a killed `up` had asked for may take to appear, and how often it is looked for."""


class Context:
    """Opens what a command needs when it needs it, once."""

    def __init__(
        self,
        config: Config,
        console: Console,
        *,
        flags: Collection[str] = (),
        only_own: bool = False,
        bucket: str | None = None,
    ) -> None:
        self.config = config
        self.only_own = only_own
        """The name is the project's, not one that the user typed: another project's cluster is not meant by it."""
        self.flags = flags
        """Keys of the configuration that flags of this command gave."""
        self.console = console
        self._bucket = bucket
        self.state = ClusterState(config.name)
        self._fleet: Fleet | None = None
        self._fleet_of = ""
        """The id of the cluster whose nodes it has: `run.retry` makes another one."""

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fleet is not None:
            self._fleet.close()
        if "provider" in vars(self):
            self.provider.close()

    @cached_property
    def platform(self) -> Platform:
        """What the provider says of the configuration before it is connected."""
        return providers.platform(self.config)

    @cached_property
    def provider(self) -> Provider:
        """Makes this experiment's nodes."""
        return self.platform.connect(on_retry=self.console.say)

    def of(self, name: str) -> Context:
        """The same for another cluster."""
        other = Context(self.config.model_copy(update={"name": name}), self.console)
        if "provider" in vars(self):
            other.provider = self.provider
        return other

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.config.name

    @property
    def bucket_url(self) -> str:
        """Where checkpoints go, as this machine sees it."""
        return self._bucket or self.config.checkpoints.bucket or default_bucket(self.name)

    def bucket(self, cluster: Cluster | None = None) -> Bucket:
        """The cluster's bucket, else the configured one."""
        return open_bucket((cluster.bucket if cluster else "") or self.bucket_url)

    def query(self) -> Cluster | None:
        """The cluster as its provider sees it, with what this machine remembers of it.

        Raises:
            UnseenError: none was found, but not every place answered.
            UsageError: it is another project's, and its name was not typed.
        """
        found = self.provider.cluster(self.name)
        if found is None:
            return None
        if self.only_own:
            self.refuse_others(found)
        return as_known_here(found)

    def refuse_others(self, cluster: Cluster | None) -> None:
        """Raises UsageError if this machine made the cluster for a project in another folder, and that is there."""
        record = self.state.record_of(cluster.id) if cluster is not None else None
        project, here = record.project if record else "", str(self.config.project_dir)
        # A project that was moved leaves no configuration behind.
        if project in ("", here) or not any(Path(project).glob("*.y*ml")):
            return
        self.console.named_here = ""  # The name is the point.
        raise UsageError(
            f"cluster {self.name} belongs to the project in {project}, not to that in {here}",
            hint=f"take another name here: `name:` in hvdcloud.yaml, or --name; hvdcloud status --name {self.name} and "
            f"hvdcloud down --name {self.name} are for that cluster from anywhere",
        )

    def find(self) -> Cluster | None:
        """The cluster, by its labels; None if none was seen, which is no proof that there is none.

        Commands that delete nothing continue where a place does not answer, with a warning.
        """
        try:
            with self.console.waiting(self.name, "looking for the cluster"):
                return self.query()
        except UnseenError as error:
            self.console.warn(error.message)
            return None

    def late_arrival(self, killed: str | None) -> Cluster | None:
        """The cluster with the id `killed`, whose `up` was killed in the middle of its create, as soon as something of
        it exists; None: nothing appears, or there was no such `up`."""
        if killed is None:
            return None
        until = time.monotonic() + LATE_SECONDS
        with self.console.waiting(self.name, "waiting for what a killed `up` had asked for"):
            while True:
                found = self.provider.cluster(self.name)
                if found is not None and found.id == killed:
                    return found
                if time.monotonic() >= until:
                    break
                time.sleep(PAUSE_SECONDS)
        # Only spares the next command this wait.
        with contextlib.suppress(HvdcloudError):
            self.state.journal.record("down-done", cluster_id=killed)
        return None

    def cluster(self) -> Cluster:
        """The cluster, by its labels; raises UsageError if there is none of this name."""
        found = self.find()
        if found is None:
            hint = "hvdcloud up creates it; hvdcloud list shows the clusters that exist"
            raise UsageError(f"there is no cluster {self.name}", hint=hint)
        return found

    def fleet(self, cluster: Cluster) -> Fleet:
        """Sessions to the cluster's nodes, kept until the command ends or is about another cluster."""
        from hvdcloud.remote.ssh import Fleet

        if self._fleet is None or self._fleet_of != cluster.id:
            if self._fleet is not None:
                self._fleet.close()
            self._fleet, self._fleet_of = Fleet(cluster.nodes, self.state), cluster.id
        return self._fleet

    def run_states(self, cluster: Cluster) -> list[RunState]:
        """The state of every run of this cluster, newest last; from the bucket if its head is gone.

        Raises:
            NodeError: the head does not answer, or is gone and the bucket knows of no run.
        """
        if cluster.is_headless:
            if kept := archive.states(self.bucket(cluster), cluster=self.name, cluster_id=cluster.id):
                return kept
            raise not_whole(cluster)
        self.record(cluster)
        with self.console.waiting(self.name, "asking the head"):
            answer = self.fleet(cluster).head.call("state", timeout=STATE_SECONDS)
        return RunState.all_from_json(answer.get("runs"))

    def record(self, cluster: Cluster | ClusterSpec) -> ClusterRecord:
        """What this machine remembers of this very cluster; raises `not_from_here`."""
        record = self.state.record_of(cluster.id)
        if record is None:
            self.state.check()
            raise self.not_from_here(cluster)
        return record

    def current_record(self, cluster: Cluster | ClusterSpec) -> ClusterRecord:
        """The same, of a cluster whose nodes run this version of hvdcloud; raises UsageError as well if they do not."""
        from hvdcloud.remote.join import refuse_other_version

        record = self.record(cluster)
        refuse_other_version(record.version, f"cluster {cluster.name}", name=cluster.name)
        return record

    def not_from_here(self, cluster: Cluster | ClusterSpec) -> UsageError:
        """The error for what needs the keys of the machine that made the cluster."""
        return UsageError(
            f"cluster {self.name} was not finished from this machine (made by {cluster.owner or 'another user'}): "
            f"{self.state.dir} has no record of it, or one of another version of hvdcloud",
            hint=f"use the machine that made it, or hvdcloud down --name {self.name}, with --force if it refuses, and "
            "up again",
        )

    def not_deleted(self, left: Sequence[Leftover], *, again: str, why: str = "") -> TeardownError:
        """The error for objects that could not be deleted; `again`: the command that tries again, without `--name`."""
        cost = " and may STILL COST MONEY" if self.platform.costs_money else ""
        return TeardownError(
            f"{counted(len(left), 'object')} of {self.name} could not be deleted{cost}{f' ({why})' if why else ''}",
            hint=f"{again} --name {self.name} tries again; by hand: {left[0].delete_with}",
            details=leftover_table(left),
        )


def owner_label() -> str:
    """`user-host`, in the characters that every provider's labels allow (at most 63 of a-z, 0-9, `-`, `_`)."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # A user id without a name, as in some containers.
        user = str(os.getuid())
    return re.sub(r"[^a-z0-9_-]", "-", f"{user}-{socket.gethostname()}".lower())[:63]


def node_progress(steps: Steps) -> OnProgress:
    """Shows the progress of nodes that are created and of objects that are deleted."""

    def show(progress: NodeProgress) -> None:
        if progress.stage is Stage.WORKING:
            steps.update(progress.object, progress.step)
            if progress.percent is not None:
                steps.output(progress.object, f"{progress.percent} %")
        else:
            steps.finish(progress.object, progress.step)

    return show
