"""setLabels of instances and disks: all labels are replaced, if the caller has seen the present ones.

https://cloud.google.com/compute/docs/labeling-resources#api
"""

from __future__ import annotations

from typing import Any

from tests.standins.compute.call import Call, run_simple
from tests.standins.compute.errors import ApiError
from tests.standins.compute.resources.build import fingerprint
from tests.standins.compute.rules import check_labels


def set_labels(call: Call, resource: dict[str, Any], scope: str) -> dict[str, Any]:
    """The operation that replaces the labels of an instance or a disk."""
    labels = dict(call.body.get("labels", {}))
    check_labels("labels", labels)
    if call.body.get("labelFingerprint") != resource["labelFingerprint"]:
        raise ApiError(412, "conditionNotMet", "Labels fingerprint either invalid or resource labels have changed")
    operation = call.operation("setLabels", resource, scope=scope)

    def effect() -> None:
        resource["labels"] = labels
        resource["labelFingerprint"] = fingerprint(labels)

    run_simple(call, operation, effect, fault=call.fault())
    return operation.resource
