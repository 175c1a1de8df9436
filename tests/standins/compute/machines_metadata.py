"""The metadata server of all machines: one HTTP server that tells them apart by the address they ask from.

Paths and behaviour: https://cloud.google.com/compute/docs/metadata/predefined-metadata-keys and querying-metadata.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.standins.compute.backing import BackingHost, Instance, metadata_of
from tests.standins.compute.records import KEY, NAMESPACE
from tests.standins.http_server import Server

ROOT = "/computeMetadata/v1"
# Keys below these are the user's, so JSON shows them as they are.
_VERBATIM = ("attributes", "guest-attributes")
_DISABLED = "Guest attributes endpoint access is disabled."


@dataclass(frozen=True, slots=True)
class Guest:
    """Who asks: the instance at one address."""

    name: str
    address: str
    host: BackingHost


class RefusedError(Exception):
    """A request that gets no value."""

    def __init__(self, status: HTTPStatus, text: str = "") -> None:
        super().__init__(text)
        self.status = status


@dataclass(slots=True)
class _Answer:
    text: str
    kind: str = "application/text"
    status: HTTPStatus = HTTPStatus.OK
    headers: dict[str, str] = field(default_factory=dict)


class MetadataServer:
    """Serves on a thread of its own until `close`.

    Args:
        address: to bind; where the machines' 169.254.169.254 leads.
        guest: the instance at an address, None if there is none.
    """

    def __init__(self, address: str, guest: Callable[[str], Guest | None]) -> None:
        self._http = _Server((address, 0), _Handler)
        self._http.guest = guest
        self.port = int(self._http.server_address[1])
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._http.closing.set()
        self._http.shutdown()
        self._http.server_close()


class _Server(Server):
    guest: Callable[[str], Guest | None]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.closing = threading.Event()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        """No log: machines ask every second."""

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            answer = self._answer(body)
        except RefusedError as error:
            answer = _Answer(str(error) or error.status.phrase, kind="text/plain", status=error.status)
        content = answer.text.encode()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.send_response(answer.status)
            self.send_header("Metadata-Flavor", "Google")
            self.send_header("Content-Type", answer.kind)
            self.send_header("Content-Length", str(len(content)))
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

    do_GET = do_PUT = do_DELETE = do_POST = _serve

    def version_string(self) -> str:
        """As google-auth and others look for."""
        return "Metadata Server for VM"

    def _answer(self, body: bytes) -> _Answer:
        url = urlsplit(self.path)
        if url.path == "/" and self.command == "GET":
            return _Answer("0.1/\ncomputeMetadata/\n")
        if self.headers.get("Metadata-Flavor") != "Google":
            raise RefusedError(HTTPStatus.FORBIDDEN, "Missing Metadata-Flavor:Google header.")
        if "X-Forwarded-For" in self.headers:
            raise RefusedError(HTTPStatus.FORBIDDEN, "X-Forwarded-For is not allowed.")
        guest = self.server.guest(self.client_address[0])
        if guest is None or not url.path.startswith(f"{ROOT}/"):
            raise RefusedError(HTTPStatus.NOT_FOUND)
        path = unquote(url.path.removeprefix(f"{ROOT}/"))
        if self.command == "GET":
            return self._get(guest, path, {key: values[-1] for key, values in parse_qs(url.query).items()})
        _write_guest_attribute(guest, path, body.decode() if self.command == "PUT" else None, method=self.command)
        return _Answer("")

    def _get(self, guest: Guest, path: str, query: Mapping[str, str]) -> _Answer:
        def read() -> _Answer:
            return _read(guest, path, recursive=query.get("recursive") == "true", form=query.get("alt"))

        answer = read()
        if query.get("wait_for_change") == "true":
            # last_etag=0 and any other that never was: the caller wants what there is.
            known = query.get("last_etag", answer.headers["ETag"])
            end = time.monotonic() + float(query.get("timeout_sec", "inf"))
            while answer.headers["ETag"] == known and time.monotonic() < end and not self.server.closing.wait(0.1):
                answer = read()
        return answer


def _read(guest: Guest, path: str, *, recursive: bool, form: str | None) -> _Answer:
    instance = guest.host.instance(guest.name)
    if instance is None:
        raise RefusedError(HTTPStatus.NOT_FOUND)
    account = re.fullmatch(r"(instance/service-accounts/[^/]+)/token", path)
    node = _find(tree(guest, instance), account[1] if account else path)
    if account:
        return _token(guest)
    if not _is_folder(node):
        as_json = form == "json"
        text = json.dumps(node) if as_json else "\n".join(node) if isinstance(node, list) else str(node)
    elif recursive:
        as_json = form != "text"
        verbatim = path.rstrip("/").rpartition("/")[2] in _VERBATIM
        text = json.dumps(_camel(node, verbatim=verbatim)) if as_json else _flat(node)
    elif path and not path.endswith("/"):
        return _Answer("", status=HTTPStatus.MOVED_PERMANENTLY, headers={"Location": f"{ROOT}/{path}/"})
    else:
        as_json, text = (
            False,
            "".join(f"{name}/\n" if _is_folder(child) else f"{name}\n" for name, child in _items(node)),
        )
    etag = hashlib.sha256(text.encode()).hexdigest()[:16]
    return _Answer(text, kind="application/json" if as_json else "application/text", headers={"ETag": etag})


def _token(guest: Guest) -> _Answer:
    try:
        token, seconds = guest.host.access_token(guest.name)
    except LookupError as error:
        raise RefusedError(HTTPStatus.NOT_FOUND) from error
    body = {"access_token": token, "expires_in": int(seconds), "token_type": "Bearer"}
    return _Answer(json.dumps(body), kind="application/json", headers={"ETag": "token"})


def _write_guest_attribute(guest: Guest, path: str, value: str | None, *, method: str) -> None:
    found = re.fullmatch(r"instance/guest-attributes/([^/]+)/([^/]+)", path)
    if found is None or method not in ("PUT", "DELETE"):
        raise RefusedError(HTTPStatus.METHOD_NOT_ALLOWED)
    try:
        for written in _after_fault(guest, found[1], found[2], value):
            guest.host.guest_attribute(guest.name, found[1], found[2], written)
    except PermissionError as error:
        raise RefusedError(HTTPStatus.FORBIDDEN, _DISABLED) from error
    except ValueError as error:
        raise RefusedError(HTTPStatus.BAD_REQUEST, str(error)) from error


def _after_fault(guest: Guest, namespace: str, key: str, value: str | None) -> list[str | None]:
    """What the emulator gets to see of a write: of the reports of a machine in the fault plan not all, or others."""
    fault = guest.host.fault(guest.name)
    if value is None or (namespace, key) != (NAMESPACE, KEY) or not fault.keys() & {"hang_ready", "fail_ready"}:
        return [value]
    before = _status(guest.host.guest_attributes(guest.name).get((namespace, key)))
    if "hang_ready" in fault:
        at = fault.get("at")
        return [] if at is None or (before == at and _status(value) != at) else [value]
    failure = fault["fail_ready"]
    fails = before in ("failed", failure["step"]) and _status(value) != before
    return [json.dumps({"status": "failed", **failure})] if fails or _status(value) == "ready" else [value]


def _status(report: str | None) -> str | None:
    return json.loads(report).get("status") if report else None


# -- what there is to read -------------------------------------------------------------------------------------------


def tree(guest: Guest, instance: Instance) -> dict[str, Any]:
    """All values by their path's parts, but for tokens."""
    host = guest.host
    interface = instance["networkInterfaces"][0]
    scheduling = instance.get("scheduling", {})
    accounts = {
        name: {"aliases": ["default"], "email": account["email"], "scopes": account.get("scopes", [])}
        for account in instance.get("serviceAccounts", [])[:1]
        for name in ("default", account["email"])
    }
    values = {
        "attributes": metadata_of(instance),
        "description": instance.get("description", ""),
        "hostname": f"{guest.name}.{host.zone}.c.{host.project}.internal",
        "id": int(instance["id"]),
        "machine-type": f"projects/{host.project_number}/machineTypes/{_last(instance['machineType'])}",
        "maintenance-event": "NONE",
        "name": guest.name,
        "network-interfaces": [
            {
                "access-configs": [
                    {"external-ip": config.get("natIP", ""), "type": config.get("type", "ONE_TO_ONE_NAT")}
                    for config in interface.get("accessConfigs", [])
                ],
                "ip": guest.address,
                "network": f"projects/{host.project_number}/networks/{_last(interface.get('network', 'default'))}",
            }
        ],
        "preempted": "TRUE" if host.preempted(guest.name) else "FALSE",
        "scheduling": {
            "automatic-restart": str(scheduling.get("automaticRestart", True)).upper(),
            "on-host-maintenance": scheduling.get("onHostMaintenance", "MIGRATE"),
            "preemptible": str(scheduling.get("preemptible", False)).upper(),
        },
        "service-accounts": accounts,
        "tags": instance.get("tags", {}).get("items", []),
        "zone": f"projects/{host.project_number}/zones/{host.zone}",
    }
    if metadata_of(instance).get("enable-guest-attributes", "").upper() == "TRUE":
        values["guest-attributes"] = _guest_attributes(guest)
    return {
        "instance": values,
        "project": {
            "attributes": {},
            "numeric-project-id": int(host.project_number),
            "project-id": host.project,
        },
        "universe": {"universe-domain": "googleapis.com"},
    }


def _guest_attributes(guest: Guest) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for (namespace, key), value in guest.host.guest_attributes(guest.name).items():
        found.setdefault(namespace, {})[key] = value
    return found


def _find(node: Any, path: str) -> Any:
    for part in filter(None, path.split("/")):
        children = dict(_items(node)) if _is_folder(node) else {}
        if part not in children:
            disabled = part == "guest-attributes"
            raise RefusedError(
                HTTPStatus.FORBIDDEN if disabled else HTTPStatus.NOT_FOUND, _DISABLED if disabled else ""
            )
        node = children[part]
    return node


def _is_folder(node: Any) -> bool:
    return isinstance(node, Mapping) or (isinstance(node, list) and any(isinstance(item, Mapping) for item in node))


def _items(node: Any) -> list[tuple[str, Any]]:
    if isinstance(node, Mapping):
        return sorted(node.items())
    return [(str(index), item) for index, item in enumerate(node)]


def _camel(node: Any, *, verbatim: bool = False) -> Any:
    """The JSON form: `machine-type` is `machineType`, but names that are the user's stay."""
    if isinstance(node, list):
        return [_camel(item) for item in node]
    if not isinstance(node, Mapping) or verbatim:
        return node
    return {
        re.sub(r"-(\w)", lambda match: match[1].upper(), name) if "@" not in name else name: _camel(
            child, verbatim=name in _VERBATIM
        )
        for name, child in sorted(node.items())
    }


def _flat(node: Any, prefix: str = "") -> str:
    if _is_folder(node):
        return "".join(_flat(child, f"{prefix}{name}/") for name, child in _items(node))
    values = node if isinstance(node, list) else [node]
    return "".join(f"{prefix.rstrip('/')} {value}\n" for value in values)


def _last(url: str) -> str:
    return url.rpartition("/")[2]
