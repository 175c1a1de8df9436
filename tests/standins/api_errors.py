"""Errors as Google's newer APIs give them (https://cloud.google.com/apis/design/errors)."""

from __future__ import annotations

import json
from typing import Any

from tests.standins.compute.errors import STATUS_NAMES, ApiError


def body_of(error: ApiError) -> bytes:
    """The answer's body. A reason in capitals is the status's name, where the HTTP status stands for several."""
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
