"""The server, and what a test uses to command it in the same process."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import urlsplit

from tests.standins.compute import admin, groups
from tests.standins.compute.access import Access
from tests.standins.compute.api import Answer, Api, Log, Request
from tests.standins.compute.auth import Keys, TokenError
from tests.standins.compute.backing import Backing
from tests.standins.compute.catalogue import REGION_OF
from tests.standins.compute.errors import ApiError, CutError, invalid_field
from tests.standins.compute.faults import Faults
from tests.standins.compute.google import Google
from tests.standins.compute.groups import Group, ResizeRequest
from tests.standins.compute.lifecycle import Lifecycle
from tests.standins.compute.records import Records
from tests.standins.compute.resources import reservations
from tests.standins.compute.schema import discovery
from tests.standins.compute.state import Delays, Workers
from tests.standins.http_server import Handler, Server
from tests.support.http_server import Asked


class Emulator:
    """Compute Engine for one project; use it as a context manager.

    Args:
        project: the only one it knows, beside the public image projects.
        host, port: address to bind; port 0 for any free one, `url` then has it.
        backing: what the instances are made of; `Records` by default. Closed at the end.
        delays: of operations.
        networks: name → region → CIDR of VPC networks beside `default`.

    Attributes:
        state: everything there is: `instances()`, `all_disks()`, `all_firewalls()`, `all_operations()`, `left()`.
        faults: the fault plan.
        log: the requests.
        keys: who may ask.
        google: Google's other APIs: which are on.
        catalog: Cloud Billing's prices.
        access: who may do what; the account of `credentials_file` everything, others nothing.
    """

    def __init__(
        self,
        *,
        project: str = "test-project",
        host: str = "127.0.0.1",
        port: int = 0,
        backing: Backing | None = None,
        delays: Delays | None = None,
        networks: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self.state = Workers(project=project, networks=networks or {}, delays=delays or Delays())
        self.faults: Faults = self.state.faults
        self.keys = Keys(project=project)
        self.access = Access(self.keys.email)
        self.lifecycle = Lifecycle(
            self.state, backing or Records(), token=lambda email, scopes: self.keys.issue(email, scopes=scopes)
        )
        self.api = Api(self.state, self.lifecycle, self.keys, self.access)
        self.log: Log = self.api.log
        # It speaks to this package's parts in its turn.
        from tests.standins.billing.server import Catalog

        self.catalog = Catalog(keys=self.keys)
        self.google = Google(self.state, self.keys)
        self._http = _Server((host, port), _Handler)
        self._http.owner = self

    @property
    def url(self) -> str:
        return self._http.url

    def credentials_file(self, path: Path) -> Path:
        """Write a service account's key there, for GOOGLE_APPLICATION_CREDENTIALS."""
        path.write_text(json.dumps(self.keys.credentials(self.url)))
        path.chmod(0o600)
        return path

    def __enter__(self) -> Emulator:
        self._http.start()
        self.lifecycle.firewalls_changed()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.faults.clear()
        self._http.stop()
        self.state.clock.close()
        self.lifecycle.close()
        if kind is None and self.state.clock.failures:
            raise self.state.clock.failures[0]

    # -- commands --------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """As at the start: no machines, no operations, no faults, no log, the default quotas."""
        done = threading.Event()

        def clear() -> None:
            self.state.clock.clear()
            self.lifecycle.settle()
            self.state.reset()
            self.log.clear()
            self.lifecycle.firewalls_changed()
            done.set()

        # On the clock's thread: nothing else that was due happens meanwhile.
        self.faults.clear()
        self.access.clear()
        self.google.clear()
        self.state.clock.after(0, clear)
        done.wait()

    def set_unreachable(self, zone: str, unreachable: bool, *, says: Sequence[str] = ("warning", "list")) -> None:
        """A zone can't be reached any more, or again.

        Args:
            says: where an aggregated list says so: "warning" in its scope, "list" in `unreachables`.
        """
        if zone not in REGION_OF:
            raise invalid_field("zone", zone, "Unknown zone.")
        with self.state.lock:
            if unreachable:
                self.state.unreachable[zone] = frozenset(says)
            else:
                self.state.unreachable.pop(zone, None)

    def delay_lists(self, seconds: float) -> None:
        """Lists of VMs show what there was that many seconds ago; a VM asked for by its name is seen at once."""
        with self.state.lock:
            self.state.list_lag = seconds

    def enforce(self, constraint: str, *, allowed: Collection[str] = (), in_operation: bool = False) -> None:
        """A policy of the organization: policies.py."""
        with self.state.lock:
            self.state.policies.enforce(constraint, allowed=allowed, in_operation=in_operation)

    def set_quota(self, metric: str, limit: float, *, region: str | None = None) -> None:
        with self.state.lock:
            self.state.quotas.set(metric, limit, region=region)

    def add_network(self, name: str, ranges: Mapping[str, str]) -> None:
        """A VPC network with one subnetwork of its name in each region of `ranges` (region → CIDR)."""
        with self.state.lock:
            self.state.add_network(name, ranges)

    def reserve(
        self,
        name: str,
        *,
        zone: str,
        count: int,
        machine_type: str = "n1-standard-8",
        gpus: Mapping[str, int] | None = None,
        ends: str | None = None,
        dense: bool = False,
        calendar: bool = False,
    ) -> None:
        """Make a reservation, as its owner would; what the arguments mean says resources/reservations.py."""
        with self.state.lock:
            reservations.add(
                self.state,
                name,
                zone=zone,
                count=count,
                machine_type=machine_type,
                gpus=gpus or {},
                ends=ends,
                dense=dense,
                calendar=calendar,
            )

    def preempt(self, zone: str, name: str) -> None:
        """Take a Spot VM away."""
        with self.state.lock:
            self.lifecycle.preempt(self.state.vm(zone, name))

    def grant(self) -> None:
        """Every resize request that waits gets its VMs, as far as there is quota."""
        self._end_waiting(lambda group, request: groups.grant(self.lifecycle, group, request))

    def refuse(self, code: str = "ZONE_RESOURCE_POOL_EXHAUSTED", message: str = "a scripted refusal") -> None:
        """Every resize request that waits has failed."""
        error = {"code": code, "message": message}
        self._end_waiting(lambda group, request: groups.fail(self.lifecycle, group, request, [error]))

    def _end_waiting(self, end: Callable[[Group, ResizeRequest], None]) -> None:
        with self.state.lock:
            for group in list(self.state.all_groups()):
                for request in group.requests.values():
                    end(group, request)

    def kill(self, zone: str, name: str) -> None:
        """A VM ends without a notice: TERMINATED."""
        self.lifecycle.die(self.state.vm(zone, name))

    def write_guest_attribute(self, zone: str, name: str, namespace: str, key: str, value: str) -> None:
        """As if the VM had written it."""
        self.state.vm(zone, name)
        self.lifecycle.host(zone).guest_attribute(name, namespace, key, value)


class _Server(Server):
    owner: Emulator


class _Handler(Handler):
    server: _Server

    def _serve(self) -> None:
        length = self.headers.get("Content-Length") or "0"
        if not length.isdigit() or "Transfer-Encoding" in self.headers:
            self.close_connection = True
            self._send(Answer(status=411, body=ApiError(411, "lengthRequired", "Length Required").body()))
            return
        try:
            self._send(self._answer(self.rfile.read(int(length))))
        except CutError:
            self._cut()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _answer(self, body: bytes) -> Answer:
        owner = self.server.owner
        path = self.path.partition("?")[0]
        if path.startswith("/_emulator/"):
            return admin.answer(owner, self.command, path, body)
        if path == "/token":
            return _token(owner, self.command, body)
        if path.startswith("/v1/services/"):
            return _price_list(owner, self, body)
        request = Request(
            http=self.command, target=self.path, headers=self.headers, body=body, connection=self.connection
        )
        if (other := owner.google.answer(request)) is not None:
            return other
        try:
            owner.google.check_on("compute.googleapis.com")
        except ApiError as error:
            return Answer(status=error.status, body=error.body())
        if path == discovery().batch and self.command == "POST":
            return owner.api.answer_batch(request)
        return owner.api.answer(request)

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.body)

    def _cut(self) -> None:
        """A reset: what the other side sees when a machine in between goes away."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve


def _price_list(owner: Emulator, handler: BaseHTTPRequestHandler, body: bytes) -> Answer:
    parts = urlsplit(handler.path)
    reply = owner.catalog.answer(Asked(handler.command, parts.path, parts.query, handler.headers, body))
    if reply is None:
        raise CutError
    content = reply.content if isinstance(reply.content, bytes) else json.dumps(reply.content).encode()
    headers = {name: value for name, value in reply.headers.items() if name != "Content-Type"}
    return Answer(status=reply.status, body=content, headers=headers)


def _token(owner: Emulator, http: str, body: bytes) -> Answer:
    if http != "POST":
        return Answer(status=405, body=b"{}")
    try:
        document = owner.keys.exchange(body, token_uri=f"{owner.url}/token")
    except TokenError as error:
        return Answer(status=400, body=json.dumps(error.document).encode())
    return Answer(status=200, body=json.dumps(document).encode())
