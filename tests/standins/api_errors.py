"""Errors of Google's APIs: in the older form, and in that of newer ones (https://cloud.google.com/apis/design/errors)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

STATUS_NAMES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    412: "FAILED_PRECONDITION",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
}


class ApiError(Exception):
    """Ends a request with this HTTP status and Google's error document."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        *,
        details: Sequence[Mapping[str, Any]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.details = list(details)
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        """The document in the older form, which Compute Engine and Cloud Storage have."""
        error: dict[str, Any] = {
            "code": self.status,
            "message": self.message,
            "errors": [{"message": self.message, "domain": "global", "reason": self.reason}],
        }
        if self.details:
            error["status"] = STATUS_NAMES.get(self.status, "UNKNOWN")
            error["details"] = self.details
        return json.dumps({"error": error}).encode()


def body_of(error: ApiError) -> bytes:
    """The document in the newer form. A reason in capitals is the status's name, where the HTTP status has several."""
    named = error.reason if error.reason.isupper() else STATUS_NAMES.get(error.status, "UNKNOWN")
    value: dict[str, Any] = {"code": error.status, "message": error.message, "status": named}
    if error.details:
        value["details"] = error.details
    return json.dumps({"error": value}).encode()


def invalid(message: str) -> ApiError:
    return ApiError(400, "INVALID_ARGUMENT", message)


def not_found() -> ApiError:
    return ApiError(404, "NOT_FOUND", "Requested entity was not found.")


def not_implemented(what: str) -> ApiError:
    return ApiError(501, "UNIMPLEMENTED", f"this stand-in does not implement {what}")
