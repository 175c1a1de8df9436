"""`run.retry`: after which losses a run is tried again on a new cluster, and how often."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from hvdcloud.config.section import Section

RetryCause = Literal["preempted", "lost", "no-capacity"]


class RetryConfig(Section):
    """When a run is tried again on a new cluster; all its attempts share one `limits`."""

    max: int = Field(default=3, ge=1, le=100, description="how often it is tried again")
    on: list[RetryCause] = Field(
        default=["preempted", "lost", "no-capacity"],
        min_length=1,
        description="what it is tried again after: preempted (a node after its notice), lost (any other loss of a "
        "node), no-capacity (waits for room, as up --wait does); never after a failure of the job itself",
    )

    @field_validator("on")
    @classmethod
    def _each_once(cls, on: list[RetryCause]) -> list[RetryCause]:
        return list(dict.fromkeys(on))
