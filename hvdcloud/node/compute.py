"""The one thing that a node asks of the Compute API: to delete VMs of its own cluster, itself included.

Allowed by `compute.instances.delete` alone, so an operation's end is not waited for. Standard library only.
https://cloud.google.com/compute/docs/reference/rest/v1/instances/delete
"""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlencode

from hvdcloud.node import machine

ENDPOINT = "https://compute.googleapis.com"
DELETE_SECONDS = 60.0
"""How long an API that is busy, broken or out of reach is asked again."""
_CALL_SECONDS = 20.0
_AT_ONCE = 16
_LONGEST_PAUSE = 8.0
_METADATA = {"Metadata-Flavor": "Google"}
_PASSES = {"rateLimitExceeded", "userRateLimitExceeded", "resourceNotReady"}


class _RefusedError(Exception):
    """Asking again is no use."""


class _BusyError(Exception):
    """Asking again may help."""


class Deletion:
    """Deletes VMs in the zone of this one."""

    def __init__(self) -> None:
        facts = machine.facts()
        self._server = str(facts.get("metadata") or "").rstrip("/")
        self._endpoint = str(facts.get("compute_endpoint") or ENDPOINT).rstrip("/")
        self._lock = threading.Lock()
        self._token = ""
        self._place = ""
        # Neither the metadata server nor a private endpoint is behind the proxy that an image may name.
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=_tls())
        )

    def delete(self, names: Sequence[str], *, seconds: float = DELETE_SECONDS) -> dict[str, str]:
        """Ask for the deletion of VMs, all at once; gone already is success.

        Args:
            names: of the VMs.
            seconds: how long to go on asking.

        Returns:
            Those that will not be deleted, each with the reason.
        """
        if not names:
            return {}
        deadline = time.monotonic() + seconds
        with ThreadPoolExecutor(max_workers=min(_AT_ONCE, len(names))) as pool:
            reasons = pool.map(lambda name: self._delete(name, deadline), names)
            return {name: reason for name, reason in zip(names, reasons, strict=True) if reason}

    def _delete(self, name: str, deadline: float) -> str:
        # The same for every attempt: a lost answer makes no second operation.
        query = urlencode({"requestId": str(uuid.uuid4())})
        pause = 0.2
        while True:
            try:
                self._ask(name, query)
            except _RefusedError as error:
                return str(error)
            except (_BusyError, OSError, http.client.HTTPException, ValueError) as error:
                if time.monotonic() + pause >= deadline:
                    return str(error) or type(error).__name__
            else:
                return ""
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _ask(self, name: str, query: str) -> None:
        place, token = self._identity()
        request = urllib.request.Request(
            f"{self._endpoint}/compute/v1/{place}/instances/{name}?{query}",
            method="DELETE",
            headers={"Authorization": f"Bearer {token}"},
        )
        try:
            with self._opener.open(request, timeout=_CALL_SECONDS) as response:
                response.read()
        except urllib.error.HTTPError as error:
            self._judge(error)

    def _judge(self, error: urllib.error.HTTPError) -> None:
        """
        Raises:
            _BusyError, _RefusedError: unless the VM is gone.
        """
        with error:
            message, reason = _explained(error.read(65536))
        said = f"{error.code} {reason}: {message}" if reason else f"{error.code} {message or error.reason}"
        if error.code == 404 and reason == "notFound":
            return
        if error.code == 401:
            with self._lock:
                self._token = ""
        if error.code in (401, 408, 409, 412, 429) or error.code >= 500 or reason in _PASSES:
            raise _BusyError(said)
        raise _RefusedError(said)

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
                    raise _RefusedError("the VM has no service account") from None
                raise _BusyError(f"the metadata server says {error.code}") from None


def _explained(body: bytes) -> tuple[str, str]:
    """Message and reason of one of Google's error documents; what is not one is quoted."""
    with contextlib.suppress(ValueError, KeyError, TypeError, IndexError):
        error: dict[str, Any] = json.loads(body)["error"]
        return str(error["message"]), str(error["errors"][0]["reason"])
    return body.decode(errors="replace").strip()[:200], ""


def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    # An image of the user's own may have no CA certificates; the bucket's client brings some.
    with contextlib.suppress(ImportError, OSError):
        import certifi

        context.load_verify_locations(certifi.where())
    return context
