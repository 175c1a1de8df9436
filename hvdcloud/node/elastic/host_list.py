"""The list of hosts that Horovod's driver reads every second, through a script that prints a file."""

from __future__ import annotations

import time
from collections.abc import Mapping

from hvdcloud.node import paths
from hvdcloud.node.elastic.membership import Member, Membership, Place
from hvdcloud.node.files import replace
from hvdcloud.node.mesh import hosts


class HostList:
    """The list of one run, as its membership has it."""

    def __init__(self, run: str, membership: Membership) -> None:
        self.script = paths.run_dir(run) / "discover"
        self._file = paths.run_dir(run) / "hosts"
        self._membership = membership
        self._opened = False

    def create(self) -> None:
        """Write the script, and a list without hosts."""
        hosts.write_aliases({})
        self.write({})
        self.script.write_text(f"#!/bin/sh\nexec cat {self._file}\n")
        self.script.chmod(0o755)

    def write(self, slots: Mapping[str, int]) -> None:
        """Make these aliases the list, in one move."""
        replace(self._file, "".join(f"{alias}:{number}\n" for alias, number in slots.items()))

    def update(self, *, now: float, patient_until: float) -> list[Member] | None:
        """Change the list, if that is due.

        Args:
            patient_until: until then the first list waits for every node that starts; monotonic seconds, as `now`.

        Returns:
            The members that are new on it; None: it has not changed.
        """
        membership = self._membership
        if not self._opened:
            waiting = any(member.place is Place.JOINING for member in membership.members.values())
            few = len(membership.usable()) < membership.least
            if waiting and (few or now < patient_until):
                return None
            self._opened = True
        if membership.worth_waiting(now=time.time()):
            return None
        before = membership.in_use()
        slots = membership.change(now=now)
        if slots is None:
            return None
        in_use = membership.in_use()
        hosts.write_aliases({member.alias: member.name for member in in_use if member.alias != member.name})
        self.write(slots)
        return [member for member in in_use if member not in before]
