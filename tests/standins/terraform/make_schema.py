"""Cuts schema.json from the source of Google's Terraform provider.

    git clone https://github.com/hashicorp/terraform-provider-google && git -C terraform-provider-google checkout COMMIT
    python -m tests.standins.terraform.make_schema terraform-provider-google

What is taken: names of arguments, their types, whether they are required, which change makes a new resource, defaults,
and the checks of values that are plain data (lists of words, ranges, regular expressions). No code and no text.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.standins.terraform.golang import Call, Literal, Name, Source, Value

SCHEMA = Path(__file__).with_name("schema.json")

# Resource → the package and the function or, of one IAM binding's, the variable with what it is a binding of.
RESOURCES = {
    "google_artifact_registry_repository": ("artifactregistry", "ResourceArtifactRegistryRepository"),
    "google_billing_budget": ("billingbudgets", "ResourceBillingBudgetsBudget"),
    "google_compute_firewall": ("compute", "ResourceComputeFirewall"),
    "google_compute_network": ("compute", "ResourceComputeNetwork"),
    "google_compute_router": ("compute", "ResourceComputeRouter"),
    "google_compute_router_nat": ("compute", "ResourceComputeRouterNat"),
    "google_compute_subnetwork": ("compute", "ResourceComputeSubnetwork"),
    "google_monitoring_notification_channel": ("monitoring", "ResourceMonitoringNotificationChannel"),
    "google_project_iam_custom_role": ("resourcemanager", "ResourceGoogleProjectIamCustomRole"),
    "google_project_service": ("resourcemanager", "ResourceGoogleProjectService"),
    "google_service_account": ("resourcemanager", "ResourceGoogleServiceAccount"),
    "google_storage_bucket": ("storage", "ResourceStorageBucket"),
}
IAM_MEMBERS = {
    "google_artifact_registry_repository_iam_member": ("artifactregistry", "ArtifactRegistryRepositoryIamSchema"),
    "google_iap_tunnel_iam_member": ("iap", "IapTunnelIamSchema"),
    "google_project_iam_member": ("resourcemanager", "IamProjectSchema"),
    "google_service_account_iam_member": ("resourcemanager", "IamServiceAccountSchema"),
    "google_storage_bucket_iam_member": ("storage", "StorageBucketIamSchema"),
}
# Data sources are made of a resource, whose attributes are all read only then but one.
DATA = {"google_project": ("resourcemanager", "ResourceGoogleProject", "project_id")}

_PRIMITIVES = {
    "schema.TypeString": "string",
    "schema.TypeInt": "number",
    "schema.TypeFloat": "number",
    "schema.TypeBool": "bool",
}
_COLLECTIONS = {"schema.TypeList": "list", "schema.TypeSet": "set", "schema.TypeMap": "map"}


class Package:
    """One package of the provider, and the two that all others use."""

    def __init__(self, checkout: Path, folder: str) -> None:
        self._sources = [_source(checkout / "google" / each) for each in (folder, "tpgresource", "tpgiamresource")]

    def returned(self, function: str) -> Value:
        """What a function of these packages returns."""
        return self._find("returned", function.rpartition(".")[2])

    def variable(self, name: str) -> Value:
        return self._find("variable", name)

    def _find(self, kind: str, name: str) -> Value:
        for source in self._sources:
            try:
                return source.returned(name) if kind == "returned" else source.variable(name)
            except LookupError:
                continue
        raise LookupError(f"no {name} in this package")

    def block(self, fields: Value) -> dict[str, Any]:
        """The attributes and the nested blocks of `map[string]*schema.Schema{…}`."""
        attributes: dict[str, Any] = {}
        blocks: dict[str, Any] = {}
        for name, found in _literal(fields).items:
            field = _literal(self.returned(found.name) if isinstance(found, Call) else found)
            element = self._element(field)
            computed_only = field.get("Computed") is True and not field.get("Optional")
            if element.get("Schema") is not None and not computed_only:
                blocks[str(name)] = self._nested(field, element)
            else:
                attributes[str(name)] = self._attribute(field, element)
        return {"attributes": attributes, "blocks": blocks}

    def _element(self, field: Literal) -> Literal:
        element = field.get("Elem")
        if isinstance(element, Call):
            element = self.returned(element.name)
        return element if isinstance(element, Literal) else Literal("", ())

    def _nested(self, field: Literal, element: Literal) -> dict[str, Any]:
        required = field.get("Required") is True
        return {
            "nesting": _COLLECTIONS[_type_name(field)],
            "min": field.get("MinItems") or 1 if required else 0,
            **({"max": field.get("MaxItems")} if field.get("MaxItems") else {}),
            **_relations(field),
            **self.block(element.get("Schema")),
        }

    def _attribute(self, field: Literal, element: Literal) -> dict[str, Any]:
        rules = {
            word: True
            for word, name in (("required", "Required"), ("optional", "Optional"), ("computed", "Computed"))
            if field.get(name) is True
        }
        if isinstance(default := field.get("Default"), (str, int, float, bool)):
            rules["default"] = default
        return {"type": self._type(field, element), **rules, **_relations(field), **_checks(field)}

    def _type(self, field: Literal, element: Literal) -> Any:
        name = _type_name(field)
        if name in _PRIMITIVES:
            return _PRIMITIVES[name]
        if element.get("Schema") is not None:
            inner = self.block(element.get("Schema"))["attributes"]
            return [_COLLECTIONS[name], ["object", {key: each["type"] for key, each in inner.items()}]]
        if element.get("Type") is None:
            return [_COLLECTIONS[name], "string"]
        return [_COLLECTIONS[name], self._type(element, self._element(element))]


def _relations(field: Literal) -> dict[str, Any]:
    found: dict[str, Any] = {"force_new": True} if field.get("ForceNew") is True else {}
    for name, word in (("ExactlyOneOf", "exactly_one_of"), ("ConflictsWith", "conflicts_with")):
        others = field.get(name)
        # Those inside of blocks are written as paths.
        if isinstance(others, Literal) and not any("." in str(each) for each in others.values):
            found[word] = sorted(str(each) for each in others.values)
    return found


def _checks(field: Literal) -> dict[str, Any]:
    check = field.get("ValidateFunc")
    if isinstance(check, Name):
        return {"check": check.name.rpartition(".")[2]}
    if not isinstance(check, Call):
        return {}
    match check.name.rpartition(".")[2], check.arguments:
        case ("ValidateEnum" | "StringInSlice", (Literal() as words, *_)):
            return {"one_of": sorted(str(each) for each in words.values if each != "")}
        case ("IntBetween", (low, high)):
            return {"between": [low, high]}
        case ("ValidateRegexp", (str() as pattern,)):
            return {"pattern": pattern}
        case ("ValidateRFC1035Name", (low, high)):
            return {"check": "ValidateRFC1035Name", "length": [low, high]}
    return {}


def _type_name(field: Literal) -> str:
    kind = field.get("Type")
    assert isinstance(kind, Name), field
    return kind.name


def _literal(value: Value) -> Literal:
    assert isinstance(value, Literal), value
    return value


def _source(folder: Path) -> Source:
    return Source(path.read_text() for path in sorted(folder.glob("*.go")) if not path.name.endswith("_test.go"))


def _resource(checkout: Path, package: str, function: str) -> dict[str, Any]:
    found = Package(checkout, f"services/{package}")
    resource = _literal(found.returned(function))
    block = found.block(resource.get("Schema"))
    block["attributes"].setdefault("id", {"type": "string", "optional": True, "computed": True})
    if isinstance(timeouts := resource.get("Timeouts"), Literal):
        block["timeouts"] = sorted(str(name.name).lower() for name, _ in timeouts.items if isinstance(name, Name))
    return block


def _data(checkout: Path, package: str, function: str, key: str) -> dict[str, Any]:
    attributes = _resource(checkout, package, function)["attributes"]
    read_only = {name: {"type": each["type"], "computed": True} for name, each in attributes.items()}
    read_only[key]["optional"] = True
    return {"attributes": read_only, "blocks": {}}


def _iam_member(checkout: Path, package: str, variable: str) -> dict[str, Any]:
    found = Package(checkout, f"services/{package}")
    both = (_literal(found.variable(name)) for name in ("IamMemberBaseSchema", variable))
    block = found.block(Literal("", tuple(item for one in both for item in one.items)))
    block["attributes"]["id"] = {"type": "string", "optional": True, "computed": True}
    return block


def _provider(checkout: Path) -> dict[str, Any]:
    text = (checkout / "google/provider/provider.go").read_text()
    text = text.replace("provider := &schema.Provider{", "return &schema.Provider{", 1)
    provider = _literal(Source(iter([text])).returned("Provider"))
    return Package(checkout, "provider").block(provider.get("Schema"))


def schema_of(checkout: Path) -> Mapping[str, Any]:
    """What schema.json holds."""
    git = ["git", "-C", str(checkout), "log", "-1", "--format=%H %cs"]
    commit, _, date = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip().partition(" ")
    return {
        "origin": {
            "repository": "https://github.com/hashicorp/terraform-provider-google",
            "commit": commit,
            "date": date,
            "license": "MPL-2.0",
        },
        "provider": _provider(checkout),
        "data": {name: _data(checkout, *where) for name, where in DATA.items()},
        "resources": dict(
            sorted(
                [(name, _resource(checkout, *where)) for name, where in RESOURCES.items()]
                + [(name, _iam_member(checkout, *where)) for name, where in IAM_MEMBERS.items()]
            )
        ),
    }


def _lines(value: Any, indent: str = "") -> Iterator[str]:
    """JSON with one attribute a line."""
    if not isinstance(value, dict) or "type" in value or not value:
        yield json.dumps(value, sort_keys=True)
        return
    yield "{\n"
    for number, (key, each) in enumerate(sorted(value.items())):
        yield f"{'' if number == 0 else ',' + chr(10)}{indent} {json.dumps(key)}: "
        yield from _lines(each, indent + " ")
    yield f"\n{indent}}}"


def main() -> None:
    """Write schema.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path, help="of terraform-provider-google")
    SCHEMA.write_text("".join(_lines(schema_of(parser.parse_args().checkout))) + "\n")


if __name__ == "__main__":
    main()
