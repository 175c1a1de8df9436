"""The life of an instance: PROVISIONING → STAGING → RUNNING → STOPPING → TERMINATED or gone.

The functions are called under the world's lock. What the backing is asked for runs on threads of its own, for one
instance one thing after the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from tests.standins.compute.backing import Backing
from tests.standins.compute.clock import timestamp
from tests.standins.compute.host import Host
from tests.standins.compute.operations import Operation
from tests.standins.compute.rules import seconds_of
from tests.standins.compute.state import Vm, Workers

SYSTEM = "system@google.com"
# https://cloud.google.com/compute/docs/instances/preemptible#preemption-process
NOTICE_SECONDS = 30.0


class Lifecycle:
    """Moves the instances of a world on, with their machines."""

    def __init__(
        self, world: Workers, backing: Backing, *, token: Callable[[str, Sequence[str]], tuple[str, float]]
    ) -> None:
        self.world = world
        self.backing = backing
        self._token = token
        self._workers = ThreadPoolExecutor(max_workers=16, thread_name_prefix="emulator-backing")
        # One after the other: the last word counts.
        self._firewall_worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="emulator-firewalls")
        self._hosts: dict[str, Host] = {}

    def close(self) -> None:
        for workers in (self._workers, self._firewall_worker):
            workers.shutdown(wait=True, cancel_futures=True)
        self.backing.close()

    # -- making ----------------------------------------------------------------------------------------------------

    def add(self, vm: Vm, disks: Sequence[dict[str, Any]]) -> None:
        """PROVISIONING."""
        self.world.vms[vm.zone][vm.name] = vm
        for disk in disks:
            self.world.disks[vm.zone][disk["name"]] = disk

    def stage(self, vm: Vm) -> None:
        """STAGING: it has its addresses."""
        internal, external = self.backing.address(vm.resource)
        interface = {**vm.resource["networkInterfaces"][0], "networkIP": internal}
        if external is not None:
            interface["accessConfigs"] = [{**interface["accessConfigs"][0], "natIP": external}]
        vm.update(status="STAGING", networkInterfaces=[interface, *vm.resource["networkInterfaces"][1:]])

    def run(self, vm: Vm) -> None:
        """RUNNING: the machine starts, and so does the time that it may run."""
        vm.created = True
        changes: dict[str, Any] = {"status": "RUNNING", "lastStartTimestamp": timestamp()}
        limit = vm.resource["scheduling"].get("maxRunDuration")
        if limit is not None:
            seconds = seconds_of(limit)
            changes["resourceStatus"] = {"scheduling": {"terminationTimestamp": timestamp(ahead=seconds)}}
            vm.limit = self.world.clock.after(seconds, self._limit_reached, vm)
        vm.update(**changes)
        vm.fault = self.world.faults.of_machine(zone=vm.zone, instance=vm.name)
        self._ask(vm, lambda: self.backing.start(vm.resource, self.host(vm.zone)))
        if vm.deleting is not None:
            self._delete(vm, vm.deleting, 0.0)

    def host(self, zone: str) -> Host:
        if zone not in self._hosts:
            self._hosts[zone] = Host(self.world, zone, token=self._token, powered_off=self._powered_off)
        return self._hosts[zone]

    # -- ending ----------------------------------------------------------------------------------------------------

    def delete(self, vm: Vm, operation: Operation, *, slow: float = 0.0) -> None:
        """Delete it; one that is being made is deleted as soon as it's there."""
        if vm.deleting is not None:
            vm.gone.append(operation.finish)
            return
        vm.deleting = operation
        if vm.created:
            self._delete(vm, operation, slow)

    def _delete(self, vm: Vm, operation: Operation, slow: float) -> None:
        was_off = vm.status == "TERMINATED"
        if vm.limit is not None:
            vm.limit.cancel()
        vm.update(status="STOPPING")

        def switch_off() -> None:
            with self.world.lock:
                operation.start()
            if not was_off:
                self.backing.stop(vm.resource, graceful_seconds=NOTICE_SECONDS)
            self.backing.delete(vm.resource)
            self.world.clock.after(self.world.delays.delete + slow, remove)

        def remove() -> None:
            with self.world.lock:
                self._remove(vm)
                operation.finish()
                for action in vm.gone:
                    action()

        self.world.clock.after(self.world.delays.start, lambda: self._ask(vm, switch_off))

    def _remove(self, vm: Vm) -> None:
        if self.world.vms[vm.zone].pop(vm.name, None) is not None:
            self.world.departed.append((time.monotonic(), vm))
        for attached in vm.resource["disks"]:
            name = attached["source"].rpartition("/")[2]
            disk = self.world.disks[vm.zone].get(name)
            if disk is None:
                continue
            if attached.get("autoDelete"):
                del self.world.disks[vm.zone][name]
            else:
                left = {key: value for key, value in disk.items() if key != "users"}
                self.world.disks[vm.zone][name] = {**left, "lastDetachTimestamp": timestamp()}

    def terminate(
        self, vm: Vm, *, graceful_seconds: float = NOTICE_SECONDS, then: Callable[[], None] | None = None
    ) -> None:
        """STOPPING, then TERMINATED; `then` is called in the same moment, under the world's lock."""
        if vm.status != "RUNNING" or vm.deleting is not None:
            return
        if vm.limit is not None:
            vm.limit.cancel()
        vm.update(status="STOPPING")

        def switch_off() -> None:
            self.backing.stop(vm.resource, graceful_seconds=graceful_seconds)
            with self.world.lock:
                if vm.deleting is None:
                    self._stopped(vm)
                if then is not None:
                    then()

        self._ask(vm, switch_off)

    def die(self, vm: Vm) -> None:
        """Power off without a notice; nothing restarts it."""
        with self.world.lock:
            self.terminate(vm, graceful_seconds=0)

    def _powered_off(self, vm: Vm) -> None:
        """The guest switched itself off."""
        if vm.status == "RUNNING" and vm.deleting is None:
            if vm.limit is not None:
                vm.limit.cancel()
            self._stopped(vm)

    def _stopped(self, vm: Vm) -> None:
        """It stays so, and so does its disk: the time limit ends with it, and no longer deletes it.

        https://cloud.google.com/compute/docs/instances/limit-vm-runtime
        """
        vm.update(status="TERMINATED", lastStopTimestamp=timestamp(), resourceStatus={})

    def preempt(self, vm: Vm) -> Operation:
        """As Compute Engine takes a Spot VM away: a notice, half a minute, off; gone if the action is DELETE."""
        vm.preempted = True
        operation = self.system_operation("compute.instances.preempted", vm)
        operation.start()
        if vm.resource["scheduling"].get("instanceTerminationAction") == "DELETE":
            self.delete(vm, operation)
        else:
            self.terminate(vm, then=operation.finish)
        return operation

    def _limit_reached(self, vm: Vm) -> None:
        with self.world.lock:
            if vm.deleting is not None or self.world.vms[vm.zone].get(vm.name) is not vm:
                return
            if vm.resource["scheduling"].get("instanceTerminationAction") == "DELETE":
                self.delete(vm, self.system_operation("delete", vm))
            else:
                operation = self.system_operation("stop", vm)
                operation.start()
                self.terminate(vm, then=operation.finish)

    def system_operation(self, kind: str, vm: Vm) -> Operation:
        """One that Compute Engine itself begins."""
        return self.world.operations.create(
            kind,
            scope=f"zones/{vm.zone}",
            target=vm.resource["selfLink"],
            target_id=vm.resource["id"],
            user=SYSTEM,
        )

    # -- the backing -----------------------------------------------------------------------------------------------

    def firewalls_changed(self) -> None:
        rules = self.world.all_firewalls()
        self._firewall_worker.submit(self.world.clock.guarded, self.backing.firewalls_changed, rules)

    def _ask(self, vm: Vm, action: Callable[[], None]) -> None:
        """Have it done once what was asked before for this instance is done. A worker that waits waits only for one
        that started earlier."""
        before = vm.last

        def job() -> None:
            if before is not None:
                before.result()
            self.world.clock.guarded(action)

        vm.last = self._workers.submit(job)

    def settle(self) -> None:
        """Switch every machine off and forget it, for a reset."""
        waiting: list[Future[None]] = []
        with self.world.lock:
            for vm in list(self.world.all_vms()):
                if vm.limit is not None:
                    vm.limit.cancel()

                def end(vm: Vm = vm) -> None:
                    if vm.created and vm.status != "TERMINATED":
                        self.backing.stop(vm.resource, graceful_seconds=0)
                    self.backing.delete(vm.resource)

                self._ask(vm, end)
                if vm.last is not None:
                    waiting.append(vm.last)
        for future in waiting:
            future.result()
