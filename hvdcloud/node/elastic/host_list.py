"""The list of hosts that Horovod's driver reads every second, through a script that prints a file."""

from __future__ import annotations

from collections.abc import Mapping

from hvdcloud.node import paths
from hvdcloud.node.files import replace
from hvdcloud.node.mesh import hosts


class HostList:
    """The list of one run."""

    def __init__(self, run: str) -> None:
        self.script = paths.run_dir(run) / "discover"
        self._file = paths.run_dir(run) / "hosts"

    def create(self) -> None:
        """Write the script, and a list without hosts."""
        self.write({}, names={})
        self.script.write_text(f"#!/bin/sh\nexec cat {self._file}\n")
        self.script.chmod(0o755)

    def write(self, slots: Mapping[str, int], *, names: Mapping[str, str]) -> None:
        """Make these the list, in one move: the slots, and the nodes' own names, by alias."""
        hosts.write_aliases({alias: name for alias, name in names.items() if alias != name})
        replace(self._file, "".join(f"{alias}:{number}\n" for alias, number in slots.items()))
