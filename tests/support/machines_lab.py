"""Machines of the emulator, and a host that keeps records of what they tell."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

from tests.standins.compute.backing import Instance, metadata_of
from tests.standins.compute.machines import Machines
from tests.support.harness import until

PROJECT, ZONE = "p-1", "us-central1-a"

BOOT_SECONDS = 60


def instance_resource(
    name: str,
    metadata: dict[str, str],
    *,
    gpus: int = 0,
    tags: tuple[str, ...] = (),
    number: int = 1000,
) -> dict[str, Any]:
    """An `Instance` with what a machine is made of."""
    zone = f"https://www.googleapis.com/compute/v1/projects/{PROJECT}/zones/{ZONE}"
    scopes = ["https://www.googleapis.com/auth/cloud-platform"]
    return {
        "id": str(number),
        "name": name,
        "zone": zone,
        "machineType": f"{zone}/machineTypes/n1-standard-8",
        "networkInterfaces": [{"network": "global/networks/default", "accessConfigs": [{}]}],
        "guestAccelerators": [{"acceleratorCount": gpus}] if gpus else [],
        "disks": [{"type": "PERSISTENT", "boot": True}],
        "serviceAccounts": [{"email": "node@p-1.iam.gserviceaccount.com", "scopes": scopes}],
        "metadata": {"items": [{"key": key, "value": value} for key, value in metadata.items()]},
        "tags": {"items": list(tags)},
    }


class Records:
    """The emulator's side: keeps what machines tell."""

    project, project_number, zone = PROJECT, "42", ZONE

    def __init__(self) -> None:
        self.instances: dict[str, Instance] = {}
        self.console: dict[str, str] = defaultdict(str)
        self.attributes: dict[str, dict[tuple[str, str], str]] = defaultdict(dict)
        self.off: list[str] = []
        self.spot_notice: set[str] = set()
        self.faults: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()

    def serial(self, name: str, text: str) -> None:
        with self._lock:
            self.console[name] += text

    def guest_attribute(self, name: str, namespace: str, key: str, value: str | None) -> None:
        if metadata_of(self.instances[name]).get("enable-guest-attributes") != "TRUE":
            raise PermissionError(name)
        if value is None:
            self.attributes[name].pop((namespace, key), None)
        else:
            self.attributes[name][namespace, key] = value

    def guest_attributes(self, name: str) -> dict[tuple[str, str], str]:
        return dict(self.attributes[name])

    def powered_off(self, name: str) -> None:
        self.off.append(name)

    def instance(self, name: str) -> Instance | None:
        return self.instances.get(name)

    def preempted(self, name: str) -> bool:
        return name in self.spot_notice

    def fault(self, name: str) -> dict[str, Any]:
        return self.faults.get(name, {})

    def access_token(self, name: str) -> tuple[str, float]:
        return f"token-of-{name}", 3599.0


class Lab:
    """Machines and their records."""

    def __init__(self, machines: Machines) -> None:
        self.machines = machines
        self.records = Records()

    def boot(
        self,
        name: str,
        script: str,
        *,
        gpus: int = 0,
        tags: tuple[str, ...] = (),
        **items: str,
    ) -> Instance:
        """Start a machine with this startup script and more metadata items, `_` for `-`."""
        metadata = {"startup-script": script, "enable-guest-attributes": "TRUE"}
        metadata |= {key.replace("_", "-"): value for key, value in items.items()}
        number = 1000 + len(self.records.instances)
        instance = instance_resource(name, metadata, gpus=gpus, tags=tags, number=number)
        internal, external = self.machines.address(instance)
        assert internal == external
        self.records.instances[name] = instance
        self.machines.start(instance, self.records)
        return instance

    def status(self, name: str) -> str | None:
        return self.records.attributes[name].get(("hvdcloud", "status"))

    def wait_for(self, words: str, *, on: str) -> str:
        """Wait until the serial port has these words; returns all of it."""
        try:
            until(lambda: words in self.records.console[on], seconds=BOOT_SECONDS, what=f"{words!r} on {on}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.records.console[on]}") from error
        return self.records.console[on]
