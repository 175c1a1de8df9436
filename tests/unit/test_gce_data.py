"""Whether data sets fit the nodes' disks."""

from __future__ import annotations

from typing import Any

import pytest

from hvdcloud.checks import Status
from hvdcloud.errors import CapacityError
from hvdcloud.providers.gce.doctor import data
from tests.support.gce_requests import settings

GB = 2**30


@pytest.mark.parametrize(
    ("gigabytes", "changes", "status", "hint"),
    [
        (70, {}, None, ""),
        # Less than the disk, but the image takes room too.
        (80, {}, Status.WARNING, "write gce.disk_gb: 150"),
        (100, {}, Status.FAILED, "write gce.disk_gb: 150"),
        (1000, {}, Status.FAILED, "write gce.disk_gb: 1050"),
        (1000, {"disk_gb": 1100}, None, ""),
    ],
)
def test_data_sets_that_do_not_fit_are_refused_with_the_key_to_change(
    gigabytes: int, changes: dict[str, Any], status: Status | None, hint: str
) -> None:
    found = data.too_large(gigabytes * GB, settings(**changes))
    assert (found and found.status) == status
    if found is not None:
        assert hint in found.hint
        assert found.error is (CapacityError if status is Status.FAILED else None)


def test_what_is_too_large_is_said_with_both_sizes() -> None:
    found = data.too_large(200 * GB, settings())
    assert found is not None
    assert found.message == "the data sets are 214.7 GB on each node, whose boot disk has room for 80.5 GB"
