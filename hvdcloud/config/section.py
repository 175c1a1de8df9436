"""What all sections of hvdcloud.yaml have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A section of hvdcloud.yaml: closed to unknown keys, never changed after reading. Types read values from text."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
