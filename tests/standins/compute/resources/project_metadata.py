"""What every VM of the project sees beside its own metadata; only policies look at it here."""

from __future__ import annotations

from typing import Any

from tests.standins.compute.call import Call, implements, run_simple
from tests.standins.compute.errors import ApiError
from tests.standins.compute.resources.build import fingerprint


@implements("projects.setCommonInstanceMetadata")
def set_common_metadata(call: Call) -> dict[str, Any]:
    world = call.world
    if again := world.operations.of_request(call.request):
        return again.resource
    items = list(call.body.get("items", []))
    if call.body.get("fingerprint") != world.common_metadata["fingerprint"]:
        raise ApiError(412, "conditionNotMet", "Supplied fingerprint does not match current metadata fingerprint.")
    world.policies.check_project_metadata(call.body, world.project)
    target = {"selfLink": world.root, "id": world.number}
    operation = call.operation("setCommonInstanceMetadata", target, scope="global")

    def effect() -> None:
        values = {item["key"]: item.get("value", "") for item in items}
        world.common_metadata = {"fingerprint": fingerprint(values), "items": items}

    run_simple(call, operation, effect, fault=call.fault())
    return operation.resource
