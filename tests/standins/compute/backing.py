"""What an instance is made of: nothing but records, or a real machine.

The emulator keeps the API's resources; a backing makes an instance "run", and tells what happens in the machine through
the host it was given. `start`, `stop` and `delete` are called on worker threads, without any lock held, for one
instance one after the other, for different instances at once: they may take their time (an instance is TERMINATED, a
deletion DONE, when `stop` has returned), but `start` should return before the machine is ready. `address` is called
under the emulator's lock: it must be quick, and ask the host nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

Instance: TypeAlias = Mapping[str, Any]
"""The stored resource in the form of the API's `Instance` schema. Read-only for a backing; `id` is never used twice,
`name` is unique in its `zone` (a URL: `zone_of`) as long as the instance exists."""


class BackingHost(Protocol):
    """What a machine may ask of and tell the emulator, for one zone of one project: names are those of its instances.

    Safe to call from any thread. What is said about an instance that is gone is ignored.
    """

    project: str
    project_number: str
    zone: str

    def serial(self, name: str, text: str) -> None:
        """Append to serial port 1, of which the last MiB is kept."""

    def guest_attribute(self, name: str, namespace: str, key: str, value: str) -> None:
        """Write a guest attribute.

        Raises:
            PermissionError: the instance's metadata does not say enable-guest-attributes=TRUE.
            ValueError: a name or value that the metadata server would refuse.
        """

    def powered_off(self, name: str) -> None:
        """The machine switched itself off: the instance is TERMINATED. `stop` isn't called for it."""

    def instance(self, name: str) -> Instance | None:
        """The resource as it is now (status, metadata, …); None once it is gone."""

    def preempted(self, name: str) -> bool:
        """What the metadata server serves as instance/preempted."""
        ...

    def fault(self, name: str) -> dict[str, Any]:
        """What the fault plan has for this machine: empty; {"hang_ready": True, "at": "pulling"}: that status is the
        last that it reports (nothing at all without `at`); {"fail_ready": {"step": …, "error": …}}: it reports that."""
        ...

    def access_token(self, name: str) -> tuple[str, float]:
        """A bearer token of the instance's service account, and the seconds it's valid.

        Raises:
            LookupError: the instance has no service account.
        """
        ...


class Backing(Protocol):
    """Makes instances run."""

    def address(self, instance: Instance) -> tuple[str, str | None]:
        """Internal and external IPv4 address of an instance that is being made; the latter only if it has an access
        config. Called once, before `start`, while the insert operation is running; the resource then shows them."""
        ...

    def start(self, instance: Instance, host: BackingHost) -> None:
        """Power on: the insert operation is DONE and the instance RUNNING."""

    def stop(self, instance: Instance, *, graceful_seconds: float) -> None:
        """Power off (TERMINATED, or before deletion): a notice to the operating system, then the plug after so long.
        May be asked for again while or after it does so."""

    def delete(self, instance: Instance) -> None:
        """The instance is gone; forget its disks and address. Also called for one that was never started."""

    def firewalls_changed(self, rules: Sequence[Mapping[str, Any]]) -> None:
        """All firewall resources of the project, after a change and once at the start."""

    def close(self) -> None:
        """End everything that is left."""


def zone_of(instance: Instance) -> str:
    """The name of the zone."""
    return str(instance["zone"]).rpartition("/")[2]


def metadata_of(instance: Instance) -> dict[str, str]:
    """The instance's metadata items."""
    return {item["key"]: item["value"] for item in instance.get("metadata", {}).get("items", [])}
