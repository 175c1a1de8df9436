"""What all sections of hvdcloud.yaml have in common."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from hvdcloud.config.yaml_text import Null


class Section(BaseModel):
    """A section of hvdcloud.yaml: closed to unknown keys, never changed after reading. Types read values from text."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _null(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {key: None if isinstance(value, Null) else value for key, value in values.items()}
