"""What all sections of hvdcloud.yaml have in common."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict


class Section(BaseModel):
    """A section of hvdcloud.yaml: closed to unknown keys, never changed after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _env_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        # Without what was written: where a name belongs, a value may have been.
        raise ValueError("write the name of an environment variable: letters, digits and _, no digit first")
    return name


EnvName = Annotated[str, AfterValidator(_env_name)]
