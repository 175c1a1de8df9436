"""`run.retry`: how often a run that lost its nodes is tried again on a new cluster."""

from __future__ import annotations

from pydantic import Field

from hvdcloud.config.section import Section


class RetryConfig(Section):
    """A run that lost nodes is tried again on a new cluster, and waits for room, as `up --wait` does; never after a
    failure of the job itself. All its attempts share one `limits`."""

    max: int = Field(default=3, ge=1, le=100, description="how often it is tried again")
