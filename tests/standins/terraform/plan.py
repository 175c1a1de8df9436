"""What Google's provider does with a configuration before anything is asked of Google: checks it, and plans.

As Terraform's plugin SDK does: https://developer.hashicorp.com/terraform/plugin/sdkv2/schemas/schema-behaviors. A value
that isn't known yet is an object that is neither a string, a number, a boolean, a list nor a dict.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Problem = tuple[str, str, str]

_LABELS = ("effective_labels", "terraform_labels")
_DNS_NAME = r"[a-z](?:[-a-z0-9]{%d,%d}[a-z0-9])"
_MEMBER = r"(?:user|group|serviceAccount|domain|principal|principalSet):\S+|allUsers|allAuthenticatedUsers"
# Of the names that the provider's source gives its checks; one that isn't here checks nothing.
_PATTERNS = {
    "ValidateGCEName": r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?",
    "ValidateIAMCustomRoleID": r"[a-zA-Z0-9_.]{3,64}",
    "validateIAMMember": _MEMBER,
    "validateProjectServiceService": r"[a-z][a-z0-9.-]*\.googleapis\.com",
}


def problems(kind: str, schema: Mapping[str, Any], config: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with a resource's configuration: summary, detail, the attribute at the outermost level."""
    found = [*_relations(schema, config), *_block_problems(schema, config)]
    if kind in _RULES:
        found += [("Invalid configuration", detail, name) for name, detail in _RULES[kind](config)]
    return found


def _relations(schema: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[Problem]:
    for name, rules in {**schema["attributes"], **schema["blocks"]}.items():
        others = rules.get("exactly_one_of")
        if others and name == others[0] and sum(_given(config.get(each)) for each in others) != 1:
            names = ", ".join(others)
            yield "Invalid combination of arguments", f'"{name}": one of `{names}` must be specified', name
        if _given(config.get(name)):
            for other in rules.get("conflicts_with", []):
                if _given(config.get(other)):
                    yield "Conflicting configuration arguments", f'"{name}": conflicts with {other}', name


def _given(value: Any) -> bool:
    return value is not None and value != []


def _block_problems(
    schema: Mapping[str, Any], config: Mapping[str, Any], *, inside: str | None = None
) -> Iterator[Problem]:
    for name, rules in schema["attributes"].items():
        value = config.get(name)
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, (str, int, float, bool)) and (detail := _wrong(rules, each)):
                yield f"Invalid value of {name}", f"{name}: {each!r} {detail}", inside or name
    for name, rules in schema["blocks"].items():
        value = config.get(name)
        for each in value if isinstance(value, list) else []:
            yield from _block_problems(rules, each, inside=inside or name)


def _wrong(rules: Mapping[str, Any], value: str | float | bool) -> str | None:
    if "one_of" in rules and value != "" and value not in rules["one_of"]:
        return f"is none of {', '.join(rules['one_of'])}"
    if (
        "between" in rules
        and isinstance(value, (int, float))
        and not rules["between"][0] <= value <= rules["between"][1]
    ):
        return f"is not in {rules['between'][0]}…{rules['between'][1]}"
    if "pattern" in rules and not re.search(rules["pattern"], str(value)):
        return f"does not match {rules['pattern']}"
    check = rules.get("check", "")
    pattern = _PATTERNS.get(check)
    if check == "ValidateRFC1035Name":
        low, high = rules["length"]
        pattern = _DNS_NAME % (low - 2, high - 2)
    if pattern and not re.fullmatch(pattern, str(value)):
        return f"does not match {pattern}"
    if check == "ValidateIpCidrRange":
        try:
            ipaddress.ip_network(str(value))
        except ValueError as error:
            return f"is no CIDR range: {error}"
    return None


# -- what Google's API refuses although the provider lets it pass ------------------------------------------------------


def _bucket(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    name = config["name"]
    if isinstance(name, str) and not re.fullmatch(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]", name):
        yield "name", f"Invalid bucket name: '{name}'"
    storage_classes = ("STANDARD", "NEARLINE", "COLDLINE", "ARCHIVE")
    for rule in _blocks(config, "lifecycle_rule"):
        for action in _blocks(rule, "action"):
            if action["type"] not in ("Delete", "SetStorageClass", "AbortIncompleteMultipartUpload"):
                yield "lifecycle_rule", f"Unknown action: {action['type']}"
            target = action["storage_class"]
            if (action["type"] == "SetStorageClass") != (target is not None) or target not in (None, *storage_classes):
                yield "lifecycle_rule", f"The storage class {target} with the action {action['type']}"
        for condition in _blocks(rule, "condition"):
            if not any(_given(each) for each in condition.values()):
                yield "lifecycle_rule", "A rule without a condition"


def _firewall(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    sources = ("source_ranges", "source_tags", "source_service_accounts")
    if config["direction"] in (None, "INGRESS") and not any(_given(config[each]) for each in sources):
        yield "direction", f"one of {', '.join(sources)} must be specified for INGRESS"
    for name in ("source_ranges", "destination_ranges"):
        for text in config[name] or [] if isinstance(config[name], list) else []:
            try:
                ipaddress.ip_network(text)
            except (TypeError, ValueError) as error:
                yield name, str(error)
    for entry in [*_blocks(config, "allow"), *_blocks(config, "deny")]:
        if isinstance(entry["protocol"], str) and not re.fullmatch(
            r"all|tcp|udp|icmp|esp|ah|sctp|ipip|[0-9]{1,3}", entry["protocol"]
        ):
            yield "allow", f"Unknown protocol: {entry['protocol']}"
        if entry["ports"] and entry["protocol"] not in ("tcp", "udp", "sctp"):
            yield "allow", f"Ports of {entry['protocol']}"


def _repository(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if config["format"] not in ("DOCKER", "MAVEN", "NPM", "PYTHON", "APT", "YUM", "GO", "GENERIC", "KFP"):
        yield "format", f"Unknown format: {config['format']}"
    for policy in _blocks(config, "cleanup_policies"):
        if policy["most_recent_versions"] and policy["action"] != "KEEP":
            yield "cleanup_policies", "most_recent_versions goes with KEEP only"
        if bool(policy["most_recent_versions"]) == bool(policy["condition"]):
            yield "cleanup_policies", "Either condition or most_recent_versions"
        for condition in _blocks(policy, "condition"):
            for name in ("older_than", "newer_than"):
                if isinstance(condition[name], str) and not re.fullmatch(r"[0-9]+[smhd]", condition[name]):
                    yield "cleanup_policies", f"{name}: not a duration: {condition[name]}"


def _iam_member(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    role = config["role"]
    if isinstance(role, str) and not re.fullmatch(r"(?:(?:projects|organizations)/[^/]+/)?roles/[\w.]+", role):
        yield "role", f"Role {role} is no role's name"
    for condition in _blocks(config, "condition"):
        text = condition["expression"]
        if not isinstance(text, str):
            continue
        # https://cloud.google.com/iam/docs/conditions-overview: a part of CEL, without regular expressions.
        bare = re.sub(r'"[^"]*"', '""', text)
        unknown = set(re.findall(r"\.(\w+)\(", bare)) - {"startsWith", "endsWith", "extract", "hasOnly", "matchTag"}
        if unknown or bare.count("(") != bare.count(")") or '"' in bare.replace('""', ""):
            yield "condition", f"Condition expression compilation failed: {text}"
        if len(re.findall(r"&&|\|\||!(?!=)", bare)) > 12:
            yield "condition", "More than 12 logical operators in a condition"


def _blocks(config: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    value = config[name]
    return value if isinstance(value, list) else []


_RULES: dict[str, Callable[[Mapping[str, Any]], Iterator[tuple[str, str]]]] = {
    "google_artifact_registry_repository": _repository,
    "google_artifact_registry_repository_iam_member": _iam_member,
    "google_compute_firewall": _firewall,
    "google_project_iam_member": _iam_member,
    "google_service_account_iam_member": _iam_member,
    "google_storage_bucket": _bucket,
    "google_storage_bucket_iam_member": _iam_member,
}


# -- planning ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a resource will be.

    Attributes:
        state: value by attribute and block.
        replace: attributes and blocks whose change needs a new resource.
    """

    state: dict[str, Any]
    replace: tuple[str, ...]

    @classmethod
    def of(
        cls, schema: Mapping[str, Any], *, prior: Mapping[str, Any] | None, config: Mapping[str, Any], unknown: Any
    ) -> Plan:
        """The plan for one resource.

        Args:
            prior: what it is; None: it isn't there.
            config: what the user wrote; None for what was left out.
            unknown: stands for a value that is known after it was applied.
        """
        state = _planned(schema, prior, config, unknown)
        if "timeouts" in schema:
            state["timeouts"] = config.get("timeouts")
        if prior is not None and not same(prior.get("labels"), state.get("labels")):
            state.update({name: unknown for name in _LABELS if name in state})
        replace = () if prior is None else tuple(_replacing(schema, prior, state))
        if replace:
            # Everything that the cloud decides is decided again.
            state = _planned(schema, None, config, unknown) | {
                name: state[name] for name in ("timeouts",) if name in state
            }
        return cls(state=state, replace=replace)


def _planned(
    schema: Mapping[str, Any], prior: Mapping[str, Any] | None, config: Mapping[str, Any], unknown: Any
) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for name, rules in schema["attributes"].items():
        state[name] = config.get(name)
        if state[name] is None:
            if "default" in rules:
                state[name] = rules["default"]
            elif rules.get("computed"):
                state[name] = unknown if prior is None else prior.get(name)
    for name, rules in schema["blocks"].items():
        values = config.get(name)
        if not isinstance(values, list):
            state[name] = values
            continue
        # Within blocks, what the cloud decides stays empty.
        state[name] = [_planned(rules, {}, each, unknown) for each in values]
    return state


def _replacing(schema: Mapping[str, Any], prior: Mapping[str, Any], state: Mapping[str, Any]) -> Iterator[str]:
    for name, rules in {**schema["attributes"], **schema["blocks"]}.items():
        if rules.get("force_new") and not same(prior.get(name), state.get(name)):
            yield name


def same(one: Any, other: Any) -> bool:
    """Whether two values say the same; nothing, an empty text and an empty list do, and the order of a list doesn't."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(any(same(each, that) for that in other) for each in one)
    if isinstance(one, dict) and isinstance(other, dict):
        return all(same(one.get(name), other.get(name)) for name in {**one, **other})
    return bool(one == other) or (one in (None, "", [], {}) and other in (None, "", [], {}))
