"""What IAM policies say of an account: yes, no, or nothing that is certain."""

from __future__ import annotations

from typing import Any

import pytest

from hvdcloud.providers.gce.doctor.node_rights import PULL_ROLES, WRITE_ROLES, Bindings, granted

NODES = "hvdcloud@lab.iam.gserviceaccount.com"
ME = f"serviceAccount:{NODES}"


def binding(role: str, *members: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "members": list(members), **more}


@pytest.mark.parametrize(
    ("of_repository", "of_project", "may"),
    [
        ([binding("roles/artifactregistry.reader", "user:ann@lab", ME)], [], True),
        ([], [binding("roles/editor", ME)], True),
        ([], [binding("roles/artifactregistry.writer", "allAuthenticatedUsers")], True),
        ([binding("roles/artifactregistry.reader", ME)], None, True),
        ([binding("roles/artifactregistry.reader", "user:ann@lab")], [binding("roles/logging.logWriter", ME)], False),
        ([], [], False),
        ([], None, None),
        (None, [], None),
        ([binding("roles/artifactregistry.reader", "group:nodes@lab")], [], None),
        ([binding("projects/lab/roles/puller", ME)], [], None),
        ([binding("roles/artifactregistry.reader", ME, condition={"title": "until noon"})], [], None),
    ],
)
def test_who_may_pull(of_repository: Bindings | None, of_project: Bindings | None, may: bool | None) -> None:
    assert granted(NODES, PULL_ROLES, project="lab", policies=(of_repository, of_project)) is may


@pytest.mark.parametrize(
    ("of_bucket", "of_project", "may"),
    [
        ([binding("roles/storage.objectUser", ME)], [], True),
        ([binding("roles/storage.admin", "projectEditor:lab")], [binding("roles/editor", ME)], True),
        # An editor of the project may do nothing with objects unless the bucket's own policy says so.
        ([], [binding("roles/editor", ME)], False),
        ([binding("roles/storage.objectUser", "projectEditor:other")], [binding("roles/editor", ME)], False),
        ([binding("roles/storage.objectViewer", ME)], [], False),
        ([binding("roles/storage.legacyBucketOwner", "projectEditor:lab")], [binding("roles/editor", ME)], True),
        ([binding("roles/storage.legacyObjectReader", "projectEditor:lab")], [binding("roles/editor", ME)], False),
    ],
)
def test_who_may_write_a_bucket(of_bucket: Bindings, of_project: Bindings, may: bool | None) -> None:
    assert granted(NODES, WRITE_ROLES, project="lab", policies=(of_bucket, of_project)) is may


@pytest.mark.parametrize(
    ("conditional", "may"),
    [(False, None), (True, True)],
)
def test_a_right_with_a_condition_counts_where_one_is_expected(conditional: bool, may: bool | None) -> None:
    of_bucket = [binding("roles/storage.objectUser", ME, condition={"title": "hvdcloud-run-records"})]
    found = granted(NODES, WRITE_ROLES, project="lab", policies=(of_bucket, []), conditional=conditional)
    assert found is may
