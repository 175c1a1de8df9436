"""`notify:` in hvdcloud.yaml: who is told of a run that nobody watches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, field_validator

from hvdcloud.config.section import EnvName, Section

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
    on: list[NotifyEvent] = Field(
        default=["end", "failed", "stuck", "lost", "cost"],
        min_length=1,
        description="what is told: end (it succeeded or was stopped), failed, stuck (limits.stuck ended it), "
        "lost (with nodes or the head), cost (the cluster has cost 80 % of limits.max_cost)",
    )

    @field_validator("on")
    @classmethod
    def _each_once(cls, on: list[NotifyEvent]) -> list[NotifyEvent]:
        return list(dict.fromkeys(on))

    @property
    def variables(self) -> Mapping[str, str]:
        """The names of the variables with the addresses, by their kind (runs/notice.py)."""
        return {kind: name for kind, name in (("webhook", self.webhook), ("slack", self.slack)) if name is not None}
