"""`run.retry`: after which losses a run is tried again on a new cluster, and how often."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hvdcloud.config.section import Section
from hvdcloud.config.types import Choices

RetryCause = Literal["preempted", "lost", "no-capacity"]


class RetryConfig(Section):
    """When a run is tried again on a new cluster; all its attempts share one `limits`."""

    max: int = Field(default=3, ge=1, le=100, description="how often it is tried again")
    on: Choices[RetryCause] = Field(
        default=["preempted", "lost", "no-capacity"],
        description="what it is tried again after: preempted (a node after its notice), lost (any other loss of a "
        "node), no-capacity (waits for room, as up --wait does); never after a failure of the job itself",
    )
