"""The bearer token of requests that do not go through Google's client, renewed when it ends."""

from __future__ import annotations

import json
import os
import threading
import time
import urllib.error
import urllib.request

from hvdcloud.errors import CredentialsError

_METADATA = "/computeMetadata/v1/instance/service-accounts/default/token"
# Seconds for which a token is not asked for again, and before its end at which it is not used any more.
_FRESH = 1.0
_MARGIN = 30.0


class AccessToken:
    """Safe to use from several threads.

    Args:
        on_vm: the tokens are those of the VM's service account; else requests are anonymous.
    """

    def __init__(self, *, on_vm: bool) -> None:
        self._on_vm = on_vm
        self._lock = threading.Lock()
        self._token = ""
        self._until = 0.0

    def header(self) -> dict[str, str]:
        """For a request. Raises CredentialsError: there is no token."""
        if not self._on_vm:
            return {}
        with self._lock:
            if time.time() >= self._until:
                self._token, self._until = _of_metadata_server()
            return {"Authorization": f"Bearer {self._token}"}

    def refused(self, header: dict[str, str]) -> bool:
        """Note that the server did not take this token. Returns whether there can be another one."""
        with self._lock:
            if header.get("Authorization") == f"Bearer {self._token}":
                self._until = 0.0
        return self._on_vm


def _of_metadata_server() -> tuple[str, float]:
    host = os.environ.get("GCE_METADATA_HOST") or "metadata.google.internal"
    request = urllib.request.Request(f"http://{host}{_METADATA}", headers={"Metadata-Flavor": "Google"})
    # Never through a proxy.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=10) as answer:
            value = json.loads(answer.read(1 << 20))
        return str(value["access_token"]), time.time() + max(_FRESH, float(value["expires_in"]) - _MARGIN)
    except urllib.error.HTTPError as error:
        hint = "hvdcloud setup gives nodes a service account with the right to read"
        raise CredentialsError(f"the VM's metadata server gives no token: {error}", hint=hint) from error
    except (KeyError, TypeError, ValueError) as error:
        raise ConnectionError(f"the metadata server's answer is no token: {error!r}") from error
