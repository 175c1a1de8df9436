"""Instance templates of the whole project: what a managed instance group makes its VMs of."""

from __future__ import annotations

import re
from typing import Any

from tests.standins.compute import lists
from tests.standins.compute.call import Call, delete, implements, insert
from tests.standins.compute.errors import ApiError, invalid_field, not_found
from tests.standins.compute.rules import check_labels, check_metadata, check_name
from tests.standins.compute.state import Workers


def template_of(world: Workers, url: str) -> dict[str, Any]:
    """A template by URL or partial URL.

    Raises:
        ApiError: 400 or 404.
    """
    match = re.fullmatch(
        r"(?:(?:https://(?:www|compute)\.googleapis\.com/compute/v1/)?projects/([^/]+)/)?global/instanceTemplates/([^/]+)",
        url,
    )
    if match is None:
        raise invalid_field("resource.instanceTemplate", url, "The URL is malformed.")
    if match[1] not in (None, world.project) or match[2] not in world.templates:
        raise not_found(f"projects/{match[1] or world.project}/global/instanceTemplates/{match[2]}")
    return world.templates[match[2]]


def _template(call: Call) -> dict[str, Any]:
    return template_of(call.world, f"global/instanceTemplates/{call.path['instanceTemplate']}")


@implements("instanceTemplates.get")
def get_template(call: Call) -> dict[str, Any]:
    return _template(call)


@implements("instanceTemplates.list")
def list_templates(call: Call) -> dict[str, Any]:
    path = call.url("global/instanceTemplates")
    items = call.world.templates.values()
    return lists.plain(call.page("InstanceTemplate"), items, kind="compute#instanceTemplateList", path=path)


@implements("instanceTemplates.insert")
def insert_template(call: Call) -> dict[str, Any]:
    world, body = call.world, call.body
    name = body.get("name", "")
    check_name("resource.name", name)
    if "properties" not in body:
        raise ApiError(400, "required", "Required field 'resource.properties' not specified")
    check_labels("resource.properties.labels", body["properties"].get("labels", {}))
    check_metadata(body["properties"].get("metadata", {}))
    template = {**world.base("instanceTemplate", "global/instanceTemplates", name), **body}
    return insert(call, template, world.templates, scope="global")


@implements("instanceTemplates.delete")
def delete_template(call: Call) -> dict[str, Any]:
    world = call.world
    template = _template(call)
    for group in world.all_groups():
        if group.resource["instanceTemplate"] == template["selfLink"]:
            path = template["selfLink"].partition("/compute/v1/")[2]
            user = group.resource["selfLink"].partition("/compute/v1/")[2]
            text = f"The instance_template resource '{path}' is already being used by '{user}'"
            raise ApiError(400, "resourceInUseByAnotherResource", text)
    return delete(call, template, world.templates, scope="global")
