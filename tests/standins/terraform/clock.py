"""hashicorp/time, of which the module uses `time_sleep`: here nobody sleeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TEXT = {"type": "string", "optional": True}
SCHEMA: Mapping[str, Any] = {
    "provider": {"attributes": {}, "blocks": {}},
    "resources": {
        "time_sleep": {
            "attributes": {
                "id": {"type": "string", "computed": True},
                "create_duration": _TEXT,
                "destroy_duration": _TEXT,
                "triggers": {"type": ["map", "string"], "optional": True, "force_new": True},
            },
            "blocks": {},
        }
    },
    "data": {},
}


class Clock:
    """Makes nothing."""

    def configure(self, config: Mapping[str, Any]) -> None:
        """The provider's own block says nothing."""

    def create(self, kind: str, planned: Mapping[str, Any]) -> dict[str, Any]:
        """As if the time had passed."""
        return {**planned, "id": "2026-01-01T00:00:00Z"}

    def read(self, kind: str, state: Mapping[str, Any]) -> dict[str, Any]:
        """As Terraform had it."""
        return dict(state)

    def update(self, kind: str, prior: Mapping[str, Any], planned: Mapping[str, Any]) -> dict[str, Any]:
        """As it was, but for the durations."""
        return {**planned, "id": prior["id"]}

    def delete(self, kind: str, state: Mapping[str, Any]) -> None:
        """There is nothing to delete."""
