"""The head replaces lost VMs of its elastic run while no client is attached, by the policy of runs/replacement.py.

The laptop sends how a VM of this cluster is made when the run begins (`VmTemplates`). Whether a node may make one is
decided by the project's IAM.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from hvdcloud.errors import HvdcloudError, NodeError
from hvdcloud.json_values import parse_object
from hvdcloud.node.mesh.host_key import check_host_key
from hvdcloud.node.mesh.join import join_replacement
from hvdcloud.node.paths import ssh_dir
from hvdcloud.node.run import follow
from hvdcloud.node.vms import poweroff
from hvdcloud.node.vms.compute import BusyError, Compute, RefusedError
from hvdcloud.node.vms.templates import VmTemplates
from hvdcloud.runs.replacement import HEAD, Failure, Found, Pace, ReplacementPolicy

OFF = {"STOPPED", "TERMINATED"}
GOING = {"STOPPING", "SUSPENDING", "SUSPENDED"}
READY_SECONDS = 1800.0
"""From a VM that exists to a node that is ready; a large image takes minutes."""
OPERATION_SECONDS = 900.0
CALL_SECONDS = 60.0
GONE_SECONDS = 300.0
CLOSE_SECONDS = 90.0
"""How long the end of the run waits for the deletion of what is half-made."""
START_SECONDS, MIN_RUN_SECONDS = 60, 30
"""A VM's time begins to count when it runs, and Compute Engine takes no less (providers/gce/plan/request.py)."""
QUOTA = {"quotaExceeded", "QUOTA_EXCEEDED"}
TAKEN = {"RESOURCE_ALREADY_EXISTS", "alreadyExists"}
FORBIDDEN = {"PERMISSIONS_ERROR", "PERMISSION_DENIED", "FORBIDDEN", "SERVICE_ACCOUNT_ACCESS_DENIED"}


class _AbandonedError(Exception):
    """The run ends."""


class _TakenError(Exception):
    """The VM exists: it runs, or another program is making it."""


class _HopelessError(Exception):
    """No other attempt would do better."""


class Replacer:
    """Replaces lost VMs of an active run, each in a thread of its own, as the policy decides.

    Args:
        say: writes a line into the run's log; from any thread, as the others.
        admit: called with the name of a node that is ready and has joined the mesh.
        pace: how long the policy waits for what.
        compute: used instead of this VM's own API.
        join: joins a node to the mesh: (name, address, host key).
    """

    def __init__(
        self,
        run: str,
        vm_templates: VmTemplates,
        *,
        say: Callable[[str], object],
        admit: Callable[[str], object],
        pace: Pace = HEAD,
        compute: Compute | None = None,
        join: Callable[[str, str, str], object] | None = None,
    ) -> None:
        self._run = run
        self._vm_templates = vm_templates
        self._say = say
        self._admit = admit
        self._poll_seconds = pace.check
        self._policy = ReplacementPolicy(pace, attached=False)
        self._lock = threading.Lock()
        """Of the policy."""
        self._compute = compute or Compute()
        self._join = join or join_replacement
        self._ending = threading.Event()
        self._threads: dict[str, threading.Thread] = {}
        self._making: set[str] = set()

    @property
    def making(self) -> list[str]:
        """Nodes that are being replaced."""
        return sorted(self._making)

    def consider(self, lost: Collection[str]) -> None:
        """Start the attempts that are due for the nodes that are lost now; called in every round, returns at once."""
        attached = follow.is_followed(self._run)
        with self._lock:
            now = time.monotonic()
            self._policy.note_lost(lost, now=now)
            self._policy.note_client(attached=attached, now=now)
            due = self._policy.due(now=now)
        self._threads = {name: thread for name, thread in self._threads.items() if thread.is_alive()}
        if self._ending.is_set():
            return
        for name in due:
            if name not in self._threads:
                thread = threading.Thread(target=self._attempt, args=(name,), name=f"replace {name}", daemon=True)
                self._threads[name] = thread
                thread.start()

    def abandon(self) -> None:
        """Begin to end; what is half-made will be deleted."""
        self._ending.set()

    def close(self) -> None:
        """End, and wait until what was half-made is deleted."""
        self.abandon()
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in list(self._threads.values()):
            thread.join(max(0.0, deadline - time.monotonic()))
        for name in self.making:
            poweroff.write_line(f"{name} may be half-made; hvdcloud down deletes it")

    # -- one VM ------------------------------------------------------------------------------------------------------

    def _attempt(self, name: str) -> None:
        """Replace a node, if Compute Engine says that it is gone or stopped."""
        try:
            found = self._instance(name)
            if found is not None and found["status"] not in OFF:
                raise _TakenError
            self._make(name, Found.GONE if found is None else Found.STOPPED)
        except _AbandonedError:
            return
        except _TakenError:
            with self._lock:
                self._policy.runs(name, now=time.monotonic())
        except Exception as error:  # noqa: BLE001 - the run continues without it; the line in its log says why
            failure, reason = _failure_of(error)
            self._tell(lambda: self._policy.failed([name], failure, reason, now=time.monotonic()))

    def _make(self, name: str, found: Found) -> None:
        seconds = math.floor(self._vm_templates.ends - time.time()) - START_SECONDS
        if seconds < MIN_RUN_SECONDS:
            raise _HopelessError("the cluster's time is nearly over")
        key = (ssh_dir() / "id_ed25519.pub").read_text().strip()
        body = self._vm_templates.body(name, seconds=seconds, key=key)
        if body is None:
            raise _HopelessError("the run's launch did not say how it is made")
        self._tell(lambda: self._policy.begun(name, found))
        self._making.add(name)
        try:
            if found is Found.STOPPED:
                self._clear(name)
            self._insert(body)
            try:
                self._join(name, *self._ready(name))
                self._check_ending()
            except BaseException:
                self._delete(name)
                raise
        finally:
            self._making.discard(name)
        self._tell(lambda: self._policy.replaced(name))
        self._admit(name)

    def _insert(self, body: Mapping[str, Any]) -> None:
        """Request the VM, and wait until it exists. Raises NodeError: Compute Engine could not make it."""
        self._check_ending()
        (name,) = body["perInstanceProperties"]
        query = {"requestId": self._vm_templates.new_request_id()}
        began = False
        try:
            operation = self._call("POST", "instances/bulkInsert", query=query, body=body)
            began = True
            operation = self._done(operation)
        except RefusedError as error:
            if error.status == 409:
                raise _TakenError from error
            if began:
                self._delete(name)
            raise
        except (BusyError, NodeError):
            # The answer may have been lost after the request had begun to be carried out.
            self._delete(name)
            raise
        errors = (operation.get("error") or {}).get("errors") or ()
        codes = {str(each.get("code")) for each in errors}
        if codes & TAKEN:
            raise _TakenError
        if errors:
            said = "; ".join(f"{each.get('code')}: {each.get('message')}" for each in errors)
            if codes & FORBIDDEN:
                raise RefusedError(said, status=403)
            raise NodeError(said, hint="hvdcloud status")

    def _done(self, operation: dict[str, Any]) -> dict[str, Any]:
        """Wait for its end; also at the run's end, since what cannot be seen yet cannot be deleted."""
        deadline = time.monotonic() + OPERATION_SECONDS
        while operation.get("status") != "DONE":
            if time.monotonic() >= deadline:
                raise NodeError(f"it did not exist after {OPERATION_SECONDS:.0f} s", hint="hvdcloud status")
            time.sleep(min(1.0, self._poll_seconds))
            operation = self._call("GET", f"operations/{operation['name']}")
        return operation

    def _ready(self, name: str) -> tuple[str, str]:
        """Address and host key of the new node, when its sshd answers."""
        deadline = time.monotonic() + READY_SECONDS
        while True:
            self._check_ending()
            found = self._instance(name)
            if found is None or found["status"] in OFF | GOING:
                raise NodeError("it was taken away while it came up", hint="hvdcloud status")
            status = self._published(name)
            if status.get("status") == "failed":
                raise NodeError(f"its step {status.get('step')} failed: {status.get('error')}", hint="hvdcloud status")
            if status.get("status") == "ready":
                return str(found["networkInterfaces"][0]["networkIP"]), check_host_key(
                    status.get("host_key"), node=name
                )
            if time.monotonic() >= deadline:
                raise NodeError(f"it was not ready after {READY_SECONDS:.0f} s", hint="hvdcloud status")
            self._wait(self._poll_seconds)

    def _clear(self, name: str) -> None:
        """Delete the stopped VM of this name."""
        self._delete(name)
        deadline = time.monotonic() + GONE_SECONDS
        while self._instance(name) is not None:
            if time.monotonic() >= deadline:
                raise NodeError("what is left of it could not be deleted in time", hint="hvdcloud status")
            self._wait(self._poll_seconds)

    def _delete(self, name: str) -> None:
        if reason := self._compute.delete_vms([name], seconds=CALL_SECONDS).get(name):
            text = f"{name} is half-made and could not be deleted: {reason}; hvdcloud down deletes it"
            poweroff.write_line(text)
            self._say(text)

    # -- what Compute Engine knows -------------------------------------------------------------------------------------

    def _instance(self, name: str) -> dict[str, Any] | None:
        try:
            return self._call("GET", f"instances/{name}")
        except RefusedError as error:
            if error.is_gone:
                return None
            raise

    def _published(self, name: str) -> dict[str, Any]:
        """The status that the new VM publishes; empty before it has published one."""
        query = {"variableKey": "hvdcloud/status"}
        try:
            found = self._call("GET", f"instances/{name}/getGuestAttributes", query=query)
        except RefusedError as error:
            if error.status == 404:
                return {}
            raise
        return parse_object(str(found.get("variableValue"))) or {}

    def _call(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        return self._compute.call(method, path, deadline=time.monotonic() + CALL_SECONDS, **more)

    # -- waiting and telling -------------------------------------------------------------------------------------------

    def _check_ending(self) -> None:
        if self._ending.is_set():
            raise _AbandonedError

    def _wait(self, seconds: float) -> None:
        if self._ending.wait(seconds):
            raise _AbandonedError

    def _tell(self, line: Callable[[], str | None]) -> None:
        """Write the line that the policy has for something into the run's log, if it has one."""
        with self._lock:
            text = line()
        if text is not None:
            self._say(text)


def _failure_of(error: Exception) -> tuple[Failure, str]:
    """How much a failed attempt says about the next one, and why it failed."""
    if isinstance(error, RefusedError) and error.reason not in QUOTA:
        if error.status not in (0, 401, 403):
            return Failure.NODE, str(error)
        return Failure.RUN, (
            f"the nodes' service account may not make VMs ({error}); hvdcloud logs -f on the machine that started "
            "the run replaces them"
        )
    if isinstance(error, (RefusedError, BusyError, HvdcloudError, OSError)):
        return Failure.PASSING, str(error)
    return Failure.NODE, str(error) if isinstance(error, _HopelessError) else f"{type(error).__name__}: {error}"
