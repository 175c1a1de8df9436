"""That the provider's source is read right."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.standins.terraform import MODULE
from tests.standins.terraform.golang import Literal
from tests.standins.terraform.make_schema import SCHEMA, Package

RESOURCE = """
package things

// A comment with "quotes" and { a brace.
func ResourceThing() *schema.Resource {
	checks := map[string]bool{"a": true}
	return &schema.Resource{
		Create: resourceThingCreate,
		CustomizeDiff: customdiff.All(func(d *schema.ResourceDiff) error { return nil }, other),
		Schema: map[string]*schema.Schema{
			"name": {Type: schema.TypeString, Required: true, ForceNew: true, ValidateFunc: verify.ValidateGCEName},
			"state": {
				Type:         schema.TypeString,
				Optional:     true,
				Default:      "ON",
				ValidateFunc: verify.ValidateEnum([]string{"ON", "OFF", ""}),
				Description:  `Says "on", or
not. Default: off`,
				DiffSuppressFunc: func(_, old, new string, _ *schema.ResourceData) bool { return old == new },
			},
			"ports": {Type: schema.TypeSet, Computed: true, Optional: true, Elem: &schema.Schema{Type: schema.TypeInt}},
			"rule":  {Type: schema.TypeList, Required: true, MaxItems: 3, Elem: thingRuleSchema()},
			"links": {Type: schema.TypeList, Computed: true, Elem: thingRuleSchema()},
			"deletion_policy": tpgresource.DeletionPolicySchemaEntry("DELETE"),
		},
	}
}

func thingRuleSchema() *schema.Resource {
	return &schema.Resource{
		Schema: map[string]*schema.Schema{
			"port": {Type: schema.TypeInt, Optional: true, ValidateFunc: validation.IntBetween(0, 65535)},
		},
	}
}
"""
SHARED = """
package tpgresource

func DeletionPolicySchemaEntry(resourceDefault string) *schema.Schema {
	return &schema.Schema{
		Type:        schema.TypeString,
		Optional:    true,
		Computed:    true,
		Description: fmt.Sprintf(`Defaults to "%s".`, resourceDefault),
	}
}
"""


def test_a_resource_is_read_from_go(tmp_path: Path) -> None:
    for name, text in (("things/thing.go", RESOURCE), ("tpgresource/utils.go", SHARED)):
        path = tmp_path / "google" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    found = Package(tmp_path, "things")
    resource = found.returned("ResourceThing")
    assert isinstance(resource, Literal)
    port = {"type": "number", "optional": True, "between": [0, 65535]}
    assert found.block(resource.get("Schema")) == {
        "attributes": {
            "name": {"type": "string", "required": True, "force_new": True, "check": "ValidateGCEName"},
            "state": {"type": "string", "optional": True, "default": "ON", "one_of": ["OFF", "ON"]},
            "ports": {"type": ["set", "number"], "optional": True, "computed": True},
            "links": {"type": ["list", ["object", {"port": "number"}]], "computed": True},
            "deletion_policy": {"type": "string", "optional": True, "computed": True},
        },
        "blocks": {"rule": {"nesting": "list", "min": 1, "max": 3, "attributes": {"port": port}, "blocks": {}}},
    }


def test_every_kind_of_resource_in_the_module_has_its_schema() -> None:
    schema = json.loads(SCHEMA.read_text())
    text = "\n".join(path.read_text() for path in MODULE.glob("*.tf"))
    assert set(re.findall(r'^resource "(google_\w+)"', text, re.M)) <= schema["resources"].keys()
    assert set(re.findall(r'^data "(\w+)"', text, re.M)) <= schema["data"].keys()
