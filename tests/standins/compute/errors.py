"""Errors as the API gives them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

# https://cloud.google.com/apis/design/errors#handling_errors
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
        error: dict[str, Any] = {
            "code": self.status,
            "message": self.message,
            "errors": [{"message": self.message, "domain": "global", "reason": self.reason}],
        }
        if self.details:
            error["status"] = STATUS_NAMES.get(self.status, "UNKNOWN")
            error["details"] = self.details
        return json.dumps({"error": error}).encode()


class CutError(Exception):
    """Ends the connection without an answer."""


def invalid(message: str) -> ApiError:
    return ApiError(400, "invalid", message)


def invalid_field(field: str, value: object, why: str = "") -> ApiError:
    return invalid(f"Invalid value for field '{field}': '{value}'. {why}".rstrip())


def denied(permission: str, resource: str, *, service: str = "compute") -> ApiError:
    """IAM says no. `resource` as in "projects/p/zones/z/instances/i"."""
    info = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": "IAM_PERMISSION_DENIED",
        "domain": f"{service}.googleapis.com",
        "metadata": {"permission": permission, "resource": resource},
    }
    return ApiError(403, "forbidden", f"Required '{permission}' permission for '{resource}'", details=[info])


def not_implemented(what: str) -> ApiError:
    return ApiError(501, "notImplemented", f"this emulator does not implement {what}")


def not_found(path: str) -> ApiError:
    """`path` as in "projects/p/zones/z/instances/i"."""
    return ApiError(404, "notFound", f"The resource '{path}' was not found")
