"""Errors as Cloud Storage's JSON API gives them."""

from __future__ import annotations

from tests.standins.api_errors import ApiError

__all__ = ["ApiError", "invalid", "not_found", "not_implemented"]


def not_found(what: str) -> ApiError:
    return ApiError(404, "notFound", f"{what} not found")


def invalid(message: str) -> ApiError:
    return ApiError(400, "invalid", message)


def not_implemented(what: str) -> ApiError:
    return ApiError(501, "notImplemented", f"this stand-in does not speak {what}")
