"""Several calls in one HTTP request, as multipart/mixed: https://cloud.google.com/compute/docs/api/how-tos/batch."""

from __future__ import annotations

import email
import http.client
import secrets
from collections.abc import Callable
from email.message import Message

from tests.standins.compute.api import Answer, Request
from tests.standins.compute.errors import ApiError, invalid

MOST_CALLS = 1000


def answer(request: Request, call: Callable[[Request], Answer]) -> Answer:
    """Answer each part in turn; what's missing in a part's headers is as in the whole request.

    Raises:
        ApiError: 400; not a batch.
    """
    kind = request.headers.get("Content-Type") or ""
    whole = email.message_from_bytes(b"Content-Type: " + kind.encode() + b"\r\n\r\n" + request.body)
    parts = whole.get_payload()
    if whole.get_content_type() != "multipart/mixed" or not isinstance(parts, list) or whole.defects:
        raise ApiError(400, "badRequest", "Failed to parse batch request, error: not multipart/mixed.")
    if len(parts) > MOST_CALLS:
        raise ApiError(400, "badRequest", f"The batch request has more than {MOST_CALLS} calls.")
    boundary = f"batch_{secrets.token_urlsafe(16)}"
    body = b""
    for part in parts:
        assert isinstance(part, Message)
        answered = call(_inner(request, part))
        head = [
            f"--{boundary}",
            "Content-Type: application/http",
            *([f"Content-ID: {_response_id(part['Content-ID'])}"] if "Content-ID" in part else []),
            "",
            f"HTTP/1.1 {answered.status} {http.client.responses.get(answered.status, '')}",
            f"Content-Type: {answered.kind}",
            *(f"{name}: {value}" for name, value in answered.headers.items()),
            f"Content-Length: {len(answered.body)}",
            "",
            "",
        ]
        body += "\r\n".join(head).encode() + answered.body + b"\r\n"
    body += f"--{boundary}--\r\n".encode()
    return Answer(status=200, body=body, kind=f"multipart/mixed; boundary={boundary}")


def _inner(request: Request, part: Message) -> Request:
    if part.get_content_type() != "application/http":
        raise ApiError(400, "badRequest", f"A part of type {part.get_content_type()}; application/http expected.")
    payload = part.get_payload(decode=True)
    data = payload if isinstance(payload, bytes) else b""
    first, _, rest = data.replace(b"\r\n", b"\n").lstrip(b"\n").partition(b"\n")
    words = first.decode().split(" ")
    if len(words) not in (2, 3) or not words[1].startswith("/"):
        raise invalid(f"not a request line: {first.decode()!r}")
    message = email.message_from_bytes(rest)
    inner = message.get_payload(decode=True)
    if "Authorization" not in message:
        message["Authorization"] = request.headers.get("Authorization") or ""
    return Request(
        http=words[0],
        target=words[1],
        headers=message,
        body=inner if isinstance(inner, bytes) else b"",
        connection=request.connection,
        part=True,
    )


def _response_id(text: str) -> str:
    """ "<x>" is answered by "<response-x>"."""
    return f"<response-{text[1:]}" if text.startswith("<") else f"response-{text}"
