"""Google credentials that are a token in a file (token_file.py)."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from google.auth.credentials import Credentials
from google.auth.exceptions import RefreshError

from hvdcloud.storage.token_file import WAITING, token_expiry


class TokenCredentials(Credentials):
    """The token that the file holds at the time of each request."""

    def __init__(self, file: Path) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # google-auth's own methods are not all typed
        self._file = file

    def refresh(self, request: Any) -> None:
        """Take the token that is in the file. Raises RefreshError: it has ended."""
        try:
            content: dict[str, Any] = json.loads(self._file.read_bytes())
        except (OSError, ValueError) as error:
            raise RefreshError(f"{self._file}: {error}") from error
        expiry = token_expiry(content)
        if expiry is None or expiry <= time.time():
            raise RefreshError(WAITING)
        self.token = content["token"]

    def before_request(self, request: Any, method: str, url: str, headers: Any) -> None:
        """Put the newest token into a request: one that ends in the middle of a long upload is followed by the next."""
        self.refresh(request)
        headers["authorization"] = f"Bearer {self.token}"
