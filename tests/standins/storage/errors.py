"""Errors as the JSON API gives them."""

from __future__ import annotations

import json


class ApiError(Exception):
    """Ends a request with this status and, as body, Google's error document."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message

    def body(self) -> bytes:
        one = {"message": self.message, "domain": "global", "reason": self.reason}
        return json.dumps({"error": {"code": self.status, "message": self.message, "errors": [one]}}).encode()


def not_found(what: str) -> ApiError:
    return ApiError(404, "notFound", f"{what} not found")


def invalid(message: str) -> ApiError:
    return ApiError(400, "invalid", message)


def not_implemented(what: str) -> ApiError:
    return ApiError(501, "notImplemented", f"this stand-in does not speak {what}")
