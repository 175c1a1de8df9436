"""The Compute API for nodes, as their service account: to delete VMs of their own cluster, or to make one again.

Each request goes to the project and the zone of this VM. Standard library only: with google-auth and api_core, which
the node's Python has for the bucket, a process that deletes four VMs takes 0.76 s instead of 0.26 (ten requests to the
metadata server instead of three), and where that server answers 503 only, it ends after 15 s with a deadline of 2.
https://cloud.google.com/compute/docs/reference/rest/v1/instances
"""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlencode

from hvdcloud.node import machine
from hvdcloud.node.tls import tls_context

ENDPOINT = "https://compute.googleapis.com"
DELETE_SECONDS = 60.0
"""How long requests to an API that is busy, broken or out of reach are repeated."""
_CALL_SECONDS = 20.0
_AT_ONCE = 16
_LONGEST_PAUSE = 8.0
_METADATA = {"Metadata-Flavor": "Google"}
_PASSES = {"rateLimitExceeded", "userRateLimitExceeded", "resourceNotReady"}


class RefusedError(Exception):
    """The API refused, and would refuse another attempt too.

    Args:
        said: the API's answer.
        status: its HTTP status; 0: the API was not asked.
        reason: its word for the error, such as `notFound`.
    """

    def __init__(self, said: str, *, status: int = 0, reason: str = "") -> None:
        super().__init__(said)
        self.status = status
        self.reason = reason

    @property
    def is_gone(self) -> bool:
        """Whether the object does not exist."""
        return self.status == 404 and self.reason == "notFound"


class BusyError(Exception):
    """Another attempt may work."""


class Compute:
    """The Compute API in the zone of this VM."""

    def __init__(self) -> None:
        facts = machine.facts()
        self._server = str(facts.get("metadata") or "").rstrip("/")
        self._endpoint = str(facts.get("compute_endpoint") or ENDPOINT).rstrip("/")
        self._lock = threading.Lock()
        self._token = ""
        self._place = ""
        # Neither the metadata server nor a private endpoint is behind the proxy that an image may name.
        https = urllib.request.HTTPSHandler(context=tls_context())
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), https)

    def call(
        self,
        method: str,
        path: str,
        *,
        deadline: float,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The answer to a request, which is repeated until there is one, or until `deadline` (time.monotonic()).

        Args:
            path: below the zone: `instances/digits-1`.
            query: the same for every attempt, so that with a requestId a lost answer makes no second operation.

        Raises:
            RefusedError: the answer is no.
            BusyError: there was none in time.
        """
        pause = 0.2
        while True:
            try:
                return self._request(method, path, query or {}, body)
            except (BusyError, OSError, http.client.HTTPException, ValueError) as error:
                if time.monotonic() + pause >= deadline:
                    raise BusyError(str(error) or type(error).__name__) from error
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def delete_vms(self, names: Sequence[str], *, seconds: float = DELETE_SECONDS) -> dict[str, str]:
        """Request the deletion of VMs, all at once; one that does not exist counts as deleted.

        Needs `compute.instances.delete` alone, so an operation's end is not waited for.

        Args:
            seconds: how long to repeat requests that fail.

        Returns:
            The VMs that will not be deleted, each with the reason.
        """
        if not names:
            return {}
        deadline = time.monotonic() + seconds
        with ThreadPoolExecutor(max_workers=min(_AT_ONCE, len(names))) as pool:
            reasons = pool.map(lambda name: self._delete_vm(name, deadline), names)
            return {name: reason for name, reason in zip(names, reasons, strict=True) if reason}

    def _delete_vm(self, name: str, deadline: float) -> str:
        """Why a VM will not be deleted; empty if it will."""
        try:
            self.call("DELETE", f"instances/{name}", query={"requestId": str(uuid.uuid4())}, deadline=deadline)
        except (RefusedError, BusyError) as error:
            return "" if isinstance(error, RefusedError) and error.is_gone else str(error)
        return ""

    def _request(
        self, method: str, path: str, query: Mapping[str, str], body: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        place, token = self._identity()
        tail = f"?{urlencode(query)}" if query else ""
        url = f"{self._endpoint}/compute/v1/{place}/{path}{tail}"
        request = urllib.request.Request(url, method=method, headers={"Authorization": f"Bearer {token}"})
        if body is not None:
            request.add_header("Content-Type", "application/json")
            request.data = json.dumps(body).encode()
        try:
            with self._opener.open(request, timeout=_CALL_SECONDS) as response:
                answer = json.loads(response.read())
        except urllib.error.HTTPError as error:
            raise self._error(error) from None
        return answer if isinstance(answer, dict) else {}

    def _error(self, error: urllib.error.HTTPError) -> RefusedError | BusyError:
        with error:
            message, reason = _explained(error.read(65536))
        said = f"{error.code} {reason}: {message}" if reason else f"{error.code} {message or error.reason}"
        if error.code == 401:
            with self._lock:
                self._token = ""
        busy = error.code in (401, 408, 412, 429) or error.code >= 500 or reason in _PASSES
        # 409: an object that is being changed is free later; one that exists already stays.
        busy = busy or (error.code == 409 and reason != "alreadyExists")
        return BusyError(said) if busy else RefusedError(said, status=error.code, reason=reason)

    def _identity(self) -> tuple[str, str]:
        """`projects/P/zones/Z` and an access token."""
        with self._lock:
            if not self._place:
                project = self._metadata("project/project-id")
                zone = self._metadata("instance/zone").rpartition("/")[2]
                self._place = f"projects/{project}/zones/{zone}"
            if not self._token:
                self._token = str(json.loads(self._metadata("instance/service-accounts/default/token"))["access_token"])
            return self._place, self._token

    def _metadata(self, path: str) -> str:
        request = urllib.request.Request(f"{self._server}/computeMetadata/v1/{path}", headers=_METADATA)
        try:
            with self._opener.open(request, timeout=_CALL_SECONDS) as response:
                return str(response.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404:
                    raise RefusedError("the VM has no service account") from None
                raise BusyError(f"the metadata server says {error.code}") from None


def _explained(body: bytes) -> tuple[str, str]:
    """Message and reason of an error document of Google's; any other text is quoted."""
    with contextlib.suppress(ValueError, KeyError, TypeError, IndexError):
        error: dict[str, Any] = json.loads(body)["error"]
        return str(error["message"]), str(error["errors"][0]["reason"])
    return body.decode(errors="replace").strip()[:200], ""
