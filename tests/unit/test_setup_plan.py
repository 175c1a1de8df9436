"""What Terraform is going to do, for people."""

from __future__ import annotations

from typing import Any

from hvdcloud.setup.terraform_plan import Action, describe_all, read_plan


def entry(address: str, actions: list[str], **change: Any) -> dict[str, Any]:
    return {
        "address": address,
        "mode": "managed",
        "type": address.partition(".")[0],
        "change": {"actions": actions, **change},
    }


def test_every_change_is_one_named_line_and_the_order_is_that_of_things() -> None:
    plan = read_plan(
        {
            "resource_changes": [
                entry(
                    "google_storage_bucket_iam_member.node",
                    ["create"],
                    after={"bucket": "lab-hvdcloud", "role": "roles/storage.objectUser"},
                    after_unknown={"member": True},
                ),
                entry(
                    "google_storage_bucket_iam_member.node_rewrites",
                    ["create"],
                    after={
                        "bucket": "lab-hvdcloud",
                        "role": "roles/storage.objectUser",
                        "condition": [{"title": "hvdcloud-run-records"}],
                    },
                    after_unknown={"member": True},
                ),
                entry("google_compute_network.hvdcloud", ["create"], after={"name": "hvdcloud"}),
                entry(
                    'google_project_iam_member.self_delete["digits"]',
                    ["delete"],
                    before={
                        "project": "lab",
                        "role": "projects/lab/roles/hvdcloudSelfDelete",
                        "member": "serviceAccount:n@lab",
                        "condition": [{"title": "hvdcloud-digits"}],
                    },
                    after=None,
                ),
                entry(
                    "google_storage_bucket.checkpoints",
                    ["update"],
                    before={"name": "lab-hvdcloud", "lifecycle_rule": [], "labels": {}},
                    after={"name": "lab-hvdcloud", "lifecycle_rule": [1], "labels": {}},
                ),
                entry(
                    "google_compute_subnetwork.hvdcloud",
                    ["delete", "create"],
                    before={"name": "hvdcloud"},
                    after={"name": "hvdcloud"},
                    replace_paths=[["region"]],
                ),
                entry("google_project_service.api[0]", ["create"], after={"service": "iam.googleapis.com"}),
                entry("google_project_service.api[1]", ["create"], after={"service": "compute.googleapis.com"}),
                entry("google_service_account.node", ["no-op"], after={"account_id": "hvdcloud"}),
                entry("google_something_new.x", ["create"], after={}),
                {**entry("data.google_project.this", ["read"], after={}), "mode": "data"},
            ],
            "resource_drift": [entry("google_storage_bucket.checkpoints", ["update"])],
        }
    )
    assert describe_all(plan) == [
        "+ APIs on: compute, iam",
        "+ network hvdcloud",
        "± subnetwork hvdcloud (region)",
        "~ bucket gs://lab-hvdcloud (lifecycle_rule; changed outside hvdcloud)",
        "+ grant to the nodes' service account: storage.objectUser on bucket lab-hvdcloud",
        "+ grant to the nodes' service account: storage.objectUser on bucket lab-hvdcloud, if hvdcloud-run-records",
        "- grant to serviceAccount:n@lab: hvdcloudSelfDelete on the project, if hvdcloud-digits",
        "+ something new x",
    ]
    assert [change.action for change in plan.deleted("google_compute_subnetwork")] == [Action.REPLACE]
    assert plan.names["google_service_account.node"] == "service account hvdcloud"
    assert not plan.empty


def test_apis_are_never_switched_off_so_no_line_says_so() -> None:
    plan = read_plan({"resource_changes": [entry("google_project_service.api", ["delete"], before={"service": "a"})]})
    assert describe_all(plan) == []


def test_a_plan_without_changes_is_empty_and_still_tells_the_outputs_and_what_is_there() -> None:
    plan = read_plan(
        {
            "resource_changes": [entry("google_storage_bucket.b", ["no-op"], after={"name": "lab"})],
            "output_changes": {"bucket": {"actions": ["no-op"]}},
            "planned_values": {"outputs": {"bucket": {"value": "gs://lab"}, "network": {"sensitive": False}}},
            "prior_state": {
                "values": {
                    "root_module": {
                        "resources": [
                            {
                                "address": "google_storage_bucket.b",
                                "mode": "managed",
                                "type": "google_storage_bucket",
                                "values": {"name": "lab"},
                                "depends_on": ["google_project_service.api"],
                            },
                            {"address": "data.x.y", "mode": "data", "type": "x", "values": {}},
                        ]
                    }
                }
            },
        }
    )
    assert plan.empty
    assert not plan.outputs_change
    assert plan.outputs == {"bucket": "gs://lab"}
    (bucket,) = plan.there
    assert (bucket.id, tuple(bucket.depends_on)) == ("lab", ("google_project_service.api",))
