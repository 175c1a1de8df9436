"""`notify:` in hvdcloud.yaml: who is told of a run that nobody watches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from hvdcloud.config.section import Section
from hvdcloud.config.types import Choices, EnvName

NotifyEvent = Literal["end", "failed", "stuck", "lost", "cost"]


class NotifyConfig(Section):
    """Who is told how a run ended, by its head, also with this machine off. Addresses are secrets: the file names the
    variables of this machine's environment that hold them."""

    webhook: EnvName | None = Field(
        default=None,
        examples=["RUNS_WEBHOOK"],
        description="name of the variable with an https:// address that gets a JSON object by POST",
    )
    slack: EnvName | None = Field(
        default=None,
        examples=["SLACK_WEBHOOK"],
        description="name of the variable with the address of a Slack incoming webhook",
    )
    on: Choices[NotifyEvent] = Field(
        default=["end", "failed", "stuck", "lost", "cost"],
        description="what is told: end (it succeeded or was stopped), failed, stuck (limits.stuck ended it), "
        "lost (with nodes or the head), cost (the cluster has cost 80 % of limits.max_cost)",
    )

    @property
    def variables(self) -> Mapping[str, str]:
        """The names of the variables with the addresses, by their kind (runs/notice.py)."""
        return {kind: name for kind, name in (("webhook", self.webhook), ("slack", self.slack)) if name is not None}
