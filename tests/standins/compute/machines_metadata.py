"""The metadata server of all machines: one HTTP server that tells them apart by the address they ask from.

Paths and behaviour: https://cloud.google.com/compute/docs/metadata/predefined-metadata-keys and querying-metadata.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.standins.compute.backing import BackingHost, Instance, metadata_of
from tests.standins.http_server import Handler, Server

ROOT = "/computeMetadata/v1"
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
    location: str = ""


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
        self._http.start()

    def close(self) -> None:
        self._http.stop()


class _Server(Server):
    guest: Callable[[str], Guest | None]


class _Handler(Handler):
    server: _Server

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
            if answer.location:
                self.send_header("Location", answer.location)
            self.end_headers()
            self.wfile.write(content)

    do_GET = do_PUT = do_POST = _serve

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
            return _read(guest, path, {key: values[-1] for key, values in parse_qs(url.query).items()})
        _write_guest_attribute(guest, path, body.decode(), method=self.command)
        return _Answer("")


def _read(guest: Guest, path: str, query: Mapping[str, str]) -> _Answer:
    if query.keys() - {"recursive", "scopes"}:
        raise RefusedError(HTTPStatus.NOT_IMPLEMENTED, f"not one of this server's parameters: {dict(query)}")
    instance = guest.host.instance(guest.name)
    if instance is None:
        raise RefusedError(HTTPStatus.NOT_FOUND)
    account = re.fullmatch(r"(instance/service-accounts/[^/]+)/token", path)
    node = _find(tree(guest, instance), account[1] if account else path)
    if account:
        return _token(guest)
    if not isinstance(node, Mapping):
        return _Answer("\n".join(node) if isinstance(node, list) else str(node))
    if query.get("recursive") == "true":
        return _Answer(json.dumps(node), kind="application/json")
    if path and not path.endswith("/"):
        return _Answer("", status=HTTPStatus.MOVED_PERMANENTLY, location=f"{ROOT}/{path}/")
    return _Answer("".join(f"{name}/\n" if isinstance(node[name], Mapping) else f"{name}\n" for name in sorted(node)))


def _token(guest: Guest) -> _Answer:
    try:
        token, seconds = guest.host.access_token(guest.name)
    except LookupError as error:
        raise RefusedError(HTTPStatus.NOT_FOUND) from error
    body = {"access_token": token, "expires_in": int(seconds), "token_type": "Bearer"}
    return _Answer(json.dumps(body), kind="application/json")


def _write_guest_attribute(guest: Guest, path: str, value: str, *, method: str) -> None:
    found = re.fullmatch(r"instance/guest-attributes/([^/]+)/([^/]+)", path)
    if found is None or method != "PUT":
        raise RefusedError(HTTPStatus.METHOD_NOT_ALLOWED)
    try:
        guest.host.guest_attribute(guest.name, found[1], found[2], value)
    except PermissionError as error:
        raise RefusedError(HTTPStatus.FORBIDDEN, _DISABLED) from error
    except ValueError as error:
        raise RefusedError(HTTPStatus.BAD_REQUEST, str(error)) from error


# -- what there is to read -------------------------------------------------------------------------------------------


def tree(guest: Guest, instance: Instance) -> dict[str, Any]:
    """All values by path, except tokens: those that nodes, and Google's libraries on them, ask for."""
    host = guest.host
    return {
        "instance": {
            "attributes": metadata_of(instance),
            "name": guest.name,
            "preempted": "TRUE" if host.preempted(guest.name) else "FALSE",
            "service-accounts": {
                name: {"aliases": ["default"], "email": account["email"], "scopes": account.get("scopes", [])}
                for account in instance.get("serviceAccounts", [])[:1]
                for name in ("default", account["email"])
            },
            "zone": f"projects/{host.project_number}/zones/{host.zone}",
        },
        "project": {"numeric-project-id": int(host.project_number), "project-id": host.project},
        "universe": {"universe-domain": "googleapis.com"},
    }


def _find(node: Any, path: str) -> Any:
    for part in filter(None, path.split("/")):
        if not isinstance(node, Mapping) or part not in node:
            raise RefusedError(HTTPStatus.NOT_FOUND)
        node = node[part]
    return node
