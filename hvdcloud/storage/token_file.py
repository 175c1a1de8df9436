"""A short-lived storage token in a file, for nodes that have no identity of their own.

Another process puts a new token into the file before the old one ends. The file has the form of a Google login with an
access token and nothing to renew it by, which nodes with an earlier version of this program read as well.
"""

from __future__ import annotations

import json

from hvdcloud.errors import CredentialsError

WAITING = "uploads wait for a storage token"
RENEW_HINT = "hvdcloud status renews it"
_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
_NOTHING_TO_RENEW_BY = {"refresh_token": "", "client_id": "", "client_secret": ""}


class TokenMissingError(CredentialsError):
    """The token has ended, and no new one has arrived yet."""


def token_text(token: str, *, expiry: float) -> str:
    """What the file holds; `expiry` in seconds since the epoch."""
    from datetime import datetime, timezone

    until = datetime.fromtimestamp(int(expiry), timezone.utc).strftime(_FORMAT)
    return json.dumps({"type": "authorized_user", "token": token, "expiry": until, **_NOTHING_TO_RENEW_BY})


def token_expiry(content: object) -> float | None:
    """When the token in such a file's JSON ends, in seconds since the epoch; None: it holds other credentials."""
    if not isinstance(content, dict) or content.get("type") != "authorized_user" or content.get("refresh_token"):
        return None
    # Here, because every agent and supervisor imports us, and few have such a token.
    from datetime import datetime, timezone

    try:
        return datetime.strptime(str(content["expiry"]), _FORMAT).replace(tzinfo=timezone.utc).timestamp()
    except (KeyError, ValueError):
        return None
