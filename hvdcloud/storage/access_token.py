"""The bearer token of requests that do not go through Google's client, renewed when it ends."""

from __future__ import annotations

import json
import os
import threading
import time
import urllib.error
import urllib.request
from datetime import timezone
from pathlib import Path
from typing import Any

from hvdcloud.errors import CredentialsError
from hvdcloud.json_values import parse_object
from hvdcloud.storage.token_file import RENEW_HINT, TokenMissingError, token_expiry

_SCOPE = "https://www.googleapis.com/auth/devstorage.read_only"
_METADATA = "/computeMetadata/v1/instance/service-accounts/default/token"
# Seconds for which a file is not read again, and before its end at which a token is not used any more.
_FRESH = 1.0
_MARGIN = 30.0


class AccessToken:
    """Safe to use from several threads.

    Args:
        credentials_file: as `open_bucket` takes it.
        anonymous: there are no credentials, and none are looked for.
    """

    def __init__(self, credentials_file: Path | None, *, anonymous: bool) -> None:
        self._file = credentials_file
        self._anonymous = credentials_file is None and anonymous
        self._lock = threading.Lock()
        self._token = ""
        self._until = 0.0
        self._google: Any = None

    def header(self) -> dict[str, str]:
        """For a request. Raises CredentialsError: there is no token now; TokenMissingError: a new one is awaited."""
        if self._anonymous:
            return {}
        with self._lock:
            if time.time() >= self._until:
                self._token, self._until = self._renewed()
            return {"Authorization": f"Bearer {self._token}"}

    def refused(self, header: dict[str, str]) -> bool:
        """Note that the server did not take this token. Returns whether there can be another one."""
        with self._lock:
            if header.get("Authorization") == f"Bearer {self._token}":
                self._until = 0.0
        return not self._anonymous

    def _renewed(self) -> tuple[str, float]:
        content = self._content()
        expiry = token_expiry(content)
        if content is not None and expiry is not None:
            if expiry <= time.time():
                raise TokenMissingError("the data sets wait for a storage token", hint=RENEW_HINT)
            return str(content["token"]), time.time() + _FRESH
        if content == {"type": "metadata"}:
            return _of_metadata_server()
        return self._of_google()

    def _content(self) -> dict[str, Any] | None:
        try:
            return parse_object(self._file.read_bytes()) if self._file is not None else None
        except OSError as error:
            raise CredentialsError(f"no usable Google credentials: {error}", hint=RENEW_HINT) from error

    def _of_google(self) -> tuple[str, float]:
        import google.auth
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import Request

        try:
            if self._google is None:
                if self._file is None:
                    self._google, _ = google.auth.default(scopes=[_SCOPE])
                else:
                    self._google, _ = google.auth.load_credentials_from_file(str(self._file), scopes=[_SCOPE])
            self._google.refresh(Request())
        except (GoogleAuthError, ValueError) as error:
            why = (str(error).splitlines() or [""])[0].partition(". ")[0]
            hint = "gcloud auth application-default login"
            raise CredentialsError(f"no usable Google credentials: {why}", hint=hint) from error
        ends = self._google.expiry
        # Google's times have no zone, and are UTC.
        until = time.time() + 60.0 if ends is None else ends.replace(tzinfo=timezone.utc).timestamp() - _MARGIN
        return str(self._google.token), max(time.time() + _FRESH, until)


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
