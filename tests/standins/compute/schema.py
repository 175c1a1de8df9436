"""The discovery document of Compute v1; see tests/standins/discovery.py."""

from __future__ import annotations

import functools

from tests.standins.compute.errors import ApiError
from tests.standins.discovery import Discovery, Method, SchemaError, load

__all__ = ["Discovery", "Method", "SchemaError", "discovery"]


@functools.cache
def discovery() -> Discovery:
    """Compute v1 as google-api-python-client carries it."""
    return load("compute.v1", refuse=lambda reason, message: ApiError(400, reason, message))
