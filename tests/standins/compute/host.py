"""What a machine may tell the emulator."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from tests.standins.compute.backing import Instance, metadata_of
from tests.standins.compute.state import Vm, Workers


class Host:
    """`BackingHost` for the instances of one zone."""

    def __init__(
        self,
        world: Workers,
        zone: str,
        *,
        token: Callable[[str, Sequence[str]], tuple[str, float]],
        powered_off: Callable[[Vm], None],
    ) -> None:
        self.project = world.project
        self.project_number = world.number
        self.zone = zone
        self._world = world
        self._token = token
        self._powered_off = powered_off

    def _vm(self, name: str) -> Vm | None:
        return self._world.vms[self.zone].get(name)

    def serial(self, name: str, text: str) -> None:
        with self._world.lock:
            if vm := self._vm(name):
                vm.write_serial(text)

    def guest_attribute(self, name: str, namespace: str, key: str, value: str) -> None:
        with self._world.lock:
            vm = self._vm(name)
            if vm is None:
                return
            if metadata_of(vm.resource).get("enable-guest-attributes", "").upper() != "TRUE":
                raise PermissionError("Guest attributes endpoint access is disabled.")
            if not all(re.fullmatch(r"[A-Za-z0-9_-]{1,128}", part) for part in (namespace, key)):
                raise ValueError(f"not a guest attribute: {namespace}/{key}")
            if len(value.encode()) > 256 << 10:
                raise ValueError("the value is longer than 256 KiB")
            vm.guest[namespace, key] = value

    def powered_off(self, name: str) -> None:
        with self._world.lock:
            if vm := self._vm(name):
                self._powered_off(vm)

    def instance(self, name: str) -> Instance | None:
        with self._world.lock:
            vm = self._vm(name)
            return vm.resource if vm else None

    def preempted(self, name: str) -> bool:
        with self._world.lock:
            vm = self._vm(name)
            return vm is not None and vm.preempted

    def fault(self, name: str) -> dict[str, Any]:
        with self._world.lock:
            vm = self._vm(name)
            return dict(vm.fault) if vm else {}

    def access_token(self, name: str) -> tuple[str, float]:
        with self._world.lock:
            vm = self._vm(name)
            accounts = vm.resource.get("serviceAccounts", []) if vm else []
        if not accounts:
            raise LookupError(f"{name} has no service account")
        return self._token(accounts[0]["email"], accounts[0].get("scopes", []))
