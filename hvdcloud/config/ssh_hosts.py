"""`ssh:` in hvdcloud.yaml: machines that the user reaches by SSH, each with a Docker engine."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from hvdcloud.config.section import Section
from hvdcloud.config.types import written_as

# What OpenSSH is given as words of its command line: none begins with a dash, and none has a space or a quote in it.
_HOST = r"[A-Za-z0-9_](?:[A-Za-z0-9_.:-]*[A-Za-z0-9_])?"
_USER = r"[A-Za-z0-9_](?:[A-Za-z0-9_.@-]*[A-Za-z0-9_])?"
_TEXT = re.compile(rf"(?:(?P<user>{_USER})@)?(?P<host>[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?)(?::(?P<port>\d+))?")
_MOST_HOSTS = 200


_HostName = Annotated[str, written_as(_HOST, "a host: a name of ~/.ssh/config or of the network, or an address")]
_UserName = Annotated[str, written_as(_USER, "the name of a user")]
_JumpHost = Annotated[
    str, written_as(_TEXT.pattern, "one jump host: [USER@]HOST[:PORT]; ~/.ssh/config can name several")
]
_Ipv4 = Annotated[str, written_as(r"(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)(?:\.(?!$)|$)){4}", "an IPv4 address")]


class SshHostConfig(Section):
    """One machine, as `ssh` reaches it. `USER@HOST:PORT` alone is short for it, where user and port may be missing."""

    host: _HostName = Field(
        examples=["gpu1", "10.0.0.7"],
        description="as `ssh HOST` has it: a name of ~/.ssh/config, a DNS name, an address",
    )
    user: _UserName | None = Field(
        default=None, description="who logs in; default: what ~/.ssh/config says, else this machine's user"
    )
    port: int | None = Field(
        default=None, ge=1, le=65535, description="of its sshd; default: as ~/.ssh/config, else 22"
    )
    jump: _JumpHost | None = Field(
        default=None,
        examples=["login.example.org"],
        description="a host through which it is reached, [USER@]HOST[:PORT]; default: as ~/.ssh/config",
    )
    gpus: Annotated[int, Field(ge=1)] | Literal["all"] | None = Field(
        default=None, description="how many of its NVIDIA GPUs its node gets; default: all with image.device cuda"
    )
    address: _Ipv4 | None = Field(
        default=None,
        examples=["192.168.1.7"],
        description="its IPv4 address at which the other hosts reach it; default: the one at which SSH reached it",
    )

    @model_validator(mode="before")
    @classmethod
    def _a_text_is_user_host_and_port(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        found = _TEXT.fullmatch(value)
        if found is None:
            raise ValueError(f"{value!r} is not a host: [USER@]HOST[:PORT]")
        return {name: part for name, part in found.groupdict().items() if part}

    @property
    def text(self) -> str:
        """`user@gpu1:22`, as short as it can be."""
        user = f"{self.user}@" if self.user else ""
        return f"{user}{self.host}{f':{self.port}' if self.port else ''}"


class SshMachinesConfig(Section):
    """Machines that are reached by SSH, and have a Docker engine."""

    hosts: list[SshHostConfig] = Field(
        default_factory=list,
        max_length=_MOST_HOSTS,
        examples=[["ann@gpu1", "gpu2", {"host": "10.0.0.7", "jump": "login.example.org", "gpus": 2}]],
        description="a node is made on each, in this order, up to `nodes`",
        json_schema_extra=lambda schema: schema.update(items={"anyOf": [{"type": "string"}, schema["items"]]}),
    )

    @field_validator("hosts")
    @classmethod
    def _each_host_once(cls, hosts: list[SshHostConfig]) -> list[SshHostConfig]:
        names = [host.host for host in hosts]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{name} is named twice; a host has one node, with all its GPUs")
        return hosts
