"""The backing without machines: what a startup script would report appears after that many seconds."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import struct
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tests.standins.compute.backing import BackingHost, Instance, zone_of
from tests.standins.compute.clock import Clock, Timer

NAMESPACE, KEY = "hvdcloud", "status"


@dataclass(frozen=True, slots=True, kw_only=True)
class BootDelays:
    """Seconds before each report."""

    pulling: float = 0.02
    pulled: float = 0.02
    driver: float = 0.02
    starting: float = 0.02
    ready: float = 0.02

    def reports(self) -> list[tuple[float, dict[str, Any]]]:
        return [
            (0.0, {"status": "host"}),
            (0.0, {"status": "login"}),
            (self.pulling, {"status": "pulling", "percent": 43, "beside": "driver"}),
            (self.pulled, {"status": "pulling", "percent": 100, "beside": "driver"}),
            (self.driver, {"status": "driver"}),
            (self.starting, {"status": "starting"}),
        ]


class Records:
    """`Backing` that only remembers.

    Args:
        boot: when a machine reports what.
    """

    def __init__(self, boot: BootDelays | None = None) -> None:
        self._boot = boot or BootDelays()
        self._clock = Clock()
        self._lock = threading.Lock()
        self._pending: dict[str, list[Timer]] = {}
        self._numbers = itertools.count(2)
        self.firewalls: list[Mapping[str, Any]] = []

    def address(self, instance: Instance) -> tuple[str, str | None]:
        number = next(self._numbers)
        internal = f"10.{128 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
        # Of this machine, where nothing listens: a port that is refused, as of a VM that pulls its image.
        external = f"127.{18 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
        return internal, external if instance["networkInterfaces"][0].get("accessConfigs") else None

    def start(self, instance: Instance, host: BackingHost) -> None:
        name, fault = instance["name"], host.fault(instance["name"])
        reports = [*self._boot.reports(), (self._boot.ready, {"status": "ready", "host_key": host_key(instance)})]
        if "hang_ready" in fault:
            seen = [index for index, (_, report) in enumerate(reports) if report["status"] == fault.get("at")]
            reports = reports[: seen[-1] + 1] if seen else []
        elif "fail_ready" in fault:
            failed = {"status": "failed", **fault["fail_ready"]}
            seen = [index for index, (_, report) in enumerate(reports) if report["status"] == failed["step"]]
            reports = [*reports[: seen[-1] + 1 if seen else 2], (self._boot.ready, failed)]
        self._say(host, name, "Booting")
        timers = []
        due = 0.0
        for seconds, report in reports:
            due += seconds
            timers.append(self._clock.after(due, self._report, host, name, report))
        with self._lock:
            self._pending[instance["id"]] = timers

    def _report(self, host: BackingHost, name: str, report: dict[str, Any]) -> None:
        shown = {key: value for key, value in report.items() if key != "host_key"}
        self._say(host, name, " ".join(str(value) for value in shown.values()))
        # Without the metadata item a real machine can't report either; its serial port still shows it.
        with suppress(PermissionError):
            host.guest_attribute(name, NAMESPACE, KEY, json.dumps(report))

    def _say(self, host: BackingHost, name: str, text: str) -> None:
        host.serial(name, f"hvdcloud: {text}\n")

    def stop(self, instance: Instance, *, graceful_seconds: float) -> None:
        with self._lock:
            timers = self._pending.pop(instance["id"], [])
        for timer in timers:
            timer.cancel()

    def delete(self, instance: Instance) -> None:
        self.stop(instance, graceful_seconds=0)

    def firewalls_changed(self, rules: Sequence[Mapping[str, Any]]) -> None:
        self.firewalls = list(rules)

    def close(self) -> None:
        self._clock.close()
        if self._clock.failures:
            raise self._clock.failures[0]


def host_key(instance: Instance) -> str:
    """A made-up Ed25519 public key, the same one for the same instance."""
    secret = hashlib.sha256(f"{zone_of(instance)}/{instance['id']}".encode()).digest()
    kind = b"ssh-ed25519"
    blob = struct.pack(">I", len(kind)) + kind + struct.pack(">I", len(secret)) + secret
    return f"ssh-ed25519 {base64.b64encode(blob).decode()}"
