"""What a test commands over HTTP: /_emulator/…; never part of the API. See README.md."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tests.standins.compute.api import Answer
from tests.standins.compute.errors import ApiError, invalid
from tests.standins.compute.resources.firewalls import firewall_of

if TYPE_CHECKING:
    from tests.standins.compute.server import Emulator


def answer(emulator: Emulator, http: str, target: str, body: bytes) -> Answer:
    """Answer one command."""
    try:
        value = json.loads(body or b"{}")
        result = _run(emulator, http, [part for part in urlsplit(target).path.split("/") if part][1:], value)
    except ApiError as error:
        return Answer(status=error.status, body=error.body())
    except (KeyError, TypeError, ValueError) as error:
        return Answer(status=400, body=invalid(f"{type(error).__name__}: {error}").body())
    return Answer(status=200, body=json.dumps(result).encode())


def _run(emulator: Emulator, http: str, path: list[str], value: dict[str, Any]) -> Any:
    match (http, path):
        case ("GET", ["state"]):
            return emulator.state.snapshot()
        case ("GET", ["requests"]):
            return {"requests": emulator.log.plain()}
        case ("DELETE", ["requests"]):
            emulator.log.clear()
        case ("GET", ["faults"]):
            return emulator.faults.plain()
        case ("POST", ["faults"]):
            for rule in value.get("rules", [value]):
                emulator.faults.add(rule["action"], **{key: one for key, one in rule.items() if key != "action"})
        case ("DELETE", ["faults"]):
            emulator.faults.clear()
        case ("DELETE", ["faults", "hold"]):
            emulator.faults.release()
        case ("POST", ["reset"]):
            emulator.reset()
        case ("POST", ["zones", zone]):
            emulator.set_unreachable(zone, value["unreachable"], says=value.get("says", ("warning", "list")))
        case ("POST", ["accounts", email]):
            emulator.new_account(email, unknown_seconds=value["unknown_seconds"])
        case ("POST", ["lists"]):
            emulator.delay_lists(value["lag_seconds"])
        case ("POST", ["policies", constraint]):
            emulator.enforce(constraint, **value)
        case ("POST", ["quota"]):
            emulator.state.quotas.set(value["metric"], value["limit"], region=value.get("region"))
        case ("POST", ["quota", region]):
            emulator.set_quota_unavailable(region, value["unavailable"])
        case ("POST", ["networks", name]):
            emulator.add_network(name, value)
        case ("DELETE", ["networks", name]):
            with emulator.state.lock:
                emulator.state.networks.pop(name, None)
                for subnetworks in emulator.state.subnetworks.values():
                    subnetworks.pop(name, None)
        case ("POST", ["firewalls"]):
            with emulator.state.lock:
                rule = firewall_of(emulator.state, value)
                emulator.state.firewalls[rule["name"]] = rule
                emulator.lifecycle.firewalls_changed()
        case ("DELETE", ["firewalls", name]):
            with emulator.state.lock:
                emulator.state.firewalls.pop(name, None)
                emulator.lifecycle.firewalls_changed()
        case ("POST", ["instances", zone, name, "preempt"]):
            emulator.preempt(zone, name)
        case ("POST", ["instances", zone, name, "kill"]):
            emulator.kill(zone, name)
        case ("POST", ["instances", zone, name, "guest-attributes"]):
            emulator.write_guest_attribute(zone, name, value["namespace"], value["key"], value["value"])
        case ("POST", ["apis", service]):
            (emulator.google.off.discard if value["on"] else emulator.google.off.add)(service)
        case ("POST", ["billing"]):
            emulator.google.billing = bool(value["on"])
        case ("POST", ["access", "deny"]):
            emulator.access.deny(value.get("email", emulator.keys.email), *value["permissions"])
        case ("POST", ["access", "settle"]):
            emulator.access.settle(value["email"], seconds=value["seconds"])
        case ("POST", ["tokens", "revoke"]):
            emulator.keys.revoke()
        case _:
            raise ApiError(404, "notFound", f"no such command: {http} /_emulator/{'/'.join(path)}")
    return {}
