"""What the stand-in for Terraform's provider makes here, by HTTP: /_emulator/…; never part of the API."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.standins.compute.api import Answer
from tests.standins.compute.errors import ApiError
from tests.standins.compute.resources.firewalls import firewall_of

if TYPE_CHECKING:
    from tests.standins.compute.server import Emulator


def answer(emulator: Emulator, http: str, path: str, body: bytes) -> Answer:
    """Answer one command."""
    try:
        _run(emulator, http, path.strip("/").split("/")[1:], json.loads(body or b"{}"))
    except ApiError as error:
        return Answer(status=error.status, body=error.body())
    return Answer(status=200, body=b"{}")


def _run(emulator: Emulator, http: str, path: list[str], value: dict[str, Any]) -> None:
    world = emulator.state
    with world.lock:
        match (http, path):
            case ("POST", ["networks", name]):
                emulator.add_network(name, value)
            case ("DELETE", ["networks", name]):
                for made in (world.networks, *world.subnetworks.values()):
                    made.pop(name, None)
            case ("POST", ["firewalls"]):
                rule = firewall_of(world, value)
                world.firewalls[rule["name"]] = rule
                emulator.lifecycle.firewalls_changed()
            case ("DELETE", ["firewalls", name]):
                world.firewalls.pop(name, None)
                emulator.lifecycle.firewalls_changed()
            case ("POST", ["roles", role]):
                emulator.google.roles[f"projects/{world.project}/roles/{role}"] = value
            case _:
                raise ApiError(404, "notFound", f"no such command: {http} {'/'.join(path)}")
