"""A notice is sent: one POST to each address, repeated for a while where the server fails.

What a server answers decides nothing else: no redirect is followed, no answer is read but its status. What goes wrong
is said without the address, which is a secret. Standard library only.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from hvdcloud.node.tls import tls_context
from hvdcloud.runs.notice import Notice, address_problem

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 30.0
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
_AGENT = "hvdcloud"
_LATER = frozenset({408, 425, 429})
"""What a server says that may take it later, beside every 5xx."""


class _NotTakenError(Exception):
    """The server did not take it, for a reason that may pass or not."""

    def __init__(self, why: str, *, passes: bool) -> None:
        super().__init__(why)
        self.passes = passes


def send(notice: Notice, addresses: Mapping[str, str], *, within: float) -> dict[str, str]:
    """Send a notice to every address, side by side; returns, by their kinds, why it was not taken, or "" where it was.

    Args:
        addresses: by their kinds; secrets.
        within: seconds after which this returns, whatever a server, a name server or a network does.
    """
    deadline = time.monotonic() + within
    found = dict.fromkeys(addresses, f"no answer in {within:.0f} s")

    def work(kind: str, address: str) -> None:
        for problem in _attempts(address, notice.id, json.dumps(notice.body(kind)).encode(), deadline=deadline):
            found[kind] = problem

    threads = [threading.Thread(target=work, args=each, daemon=True) for each in addresses.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return dict(found)


def _attempts(address: str, key: str, body: bytes, *, deadline: float) -> Iterator[str]:
    """Why each attempt to send it failed; "" of the one that did not."""
    pause = FIRST_PAUSE
    while True:
        try:
            _post(address, key, body)
        except _NotTakenError as error:
            yield str(error)
            if not error.passes or time.monotonic() + pause >= deadline:
                return
        else:
            yield ""
            return
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def _post(address: str, key: str, body: bytes) -> None:
    """Raises _NotTakenError."""
    if problem := address_problem(address):
        raise _NotTakenError(f"the address {problem}", passes=False)
    parts = urlsplit(address)
    host = parts.hostname or ""
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(host, parts.port, timeout=CONNECT_SECONDS, context=tls_context())
    else:
        connection = http.client.HTTPConnection(host, parts.port, timeout=CONNECT_SECONDS)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = {"Content-Type": "application/json", "User-Agent": _AGENT, "Idempotency-Key": key}
    sent = False
    try:
        connection.connect()
        connection.sock.settimeout(ANSWER_SECONDS)
        connection.request("POST", target, body, headers)
        sent = True
        status = connection.getresponse().status
    except ssl.SSLCertVerificationError:
        raise _NotTakenError("its certificate cannot be verified", passes=False) from None
    except TimeoutError:
        # It has the message, and may only be slow: it would get it twice.
        raise _NotTakenError("it does not answer in time", passes=not sent) from None
    except (socket.gaierror, UnicodeError):  # The latter of a name that no name server can be asked for.
        raise _NotTakenError("its name cannot be resolved", passes=True) from None
    except ssl.SSLError:
        raise _NotTakenError("no TLS connection can be made", passes=True) from None
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else "the connection broke"
        raise _NotTakenError(why, passes=True) from None
    except http.client.HTTPException:
        raise _NotTakenError("it answers something that is not HTTP", passes=False) from None
    finally:
        connection.close()
    if 300 <= status < 400:
        raise _NotTakenError(f"it answers HTTP {status}, and no redirect is followed", passes=False)
    if not 200 <= status < 300:
        raise _NotTakenError(f"it answers HTTP {status}", passes=status >= 500 or status in _LATER)
