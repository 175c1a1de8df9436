"""Errors as Compute Engine gives them."""

from __future__ import annotations

from tests.standins.api_errors import ApiError

__all__ = ["ApiError", "CutError", "denied", "invalid", "invalid_field", "not_found", "not_implemented"]


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
