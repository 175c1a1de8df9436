"""The request to Cloud Build, and the archive that goes with it: built without asking anybody."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import replace
from typing import Any

import pytest

from hvdcloud.image.cloudbuild.request import Source, build_request, names_of
from hvdcloud.image.cloudbuild.source import merged
from hvdcloud.image.plan.context import Context
from hvdcloud.image.plan.steps import ImagePlan, Step
from tests.golden import assert_golden
from tests.standins.cloudbuild.plans import tiny_plan
from tests.standins.discovery import load

REPOSITORY = "us-central1-docker.pkg.dev/lab/hvdcloud/digits"
PLAN = tiny_plan("0123456789ab")
SOURCE = Source(bucket="lab-checkpoints", name="runs/.hvdcloud/builds/source-1.tar.gz", generation=1795244353928605)


def request(plan: ImagePlan = PLAN, *, todo: tuple[Step, ...] | None = None, **changes: Any) -> dict[str, Any]:
    return build_request(
        plan,
        plan.steps if todo is None else todo,
        **{
            "names": names_of(plan, REPOSITORY),
            "source": SOURCE,
            "attempt": "hvdcloud-attempt-1",
            "project": "lab",
            "logs": "gs://lab-checkpoints/runs/.hvdcloud/builds",
            "machine_type": "E2_HIGHCPU_8",
            **changes,
        },
    )


def flags(step: dict[str, Any], name: str) -> list[str]:
    """The values that follow a flag."""
    return [value for flag, value in zip(step["args"], step["args"][1:], strict=False) if flag == name]


def test_the_request_is_the_golden_one() -> None:
    assert_golden("cloudbuild-request.json", json.dumps(request(), indent=2) + "\n")


@pytest.mark.parametrize("changes", [{}, {"todo": PLAN.steps[2:]}, {"service_account": "builder@lab.iam"}])
def test_the_request_is_legal_by_the_discovery_document(changes: dict[str, Any]) -> None:
    api = load("cloudbuild.v1", refuse=lambda _, message: AssertionError(message))
    sent = request(**changes)
    assert api.request("Build", sent) == sent


def test_what_the_registry_has_is_named_and_not_built() -> None:
    (only,) = request(todo=PLAN.steps[2:])["steps"]
    assert only["id"] == "project"
    assert f"BASE={REPOSITORY}:base-0123456789ab" in flags(only, "--build-arg")


def test_all_but_the_image_that_is_wanted_are_pushed_as_soon_as_they_are_built() -> None:
    steps = request()["steps"]
    assert [step["id"] for step in steps] == ["builder", "push-builder", "base", "push-base", "project"]
    assert request()["images"] == [f"{REPOSITORY}:0123456789ab"]


def test_a_dollar_sign_is_not_a_substitution() -> None:
    assert "REQUIREMENTS=costs $$5.txt" in flags(request()["steps"][-1], "--build-arg")


def test_an_account_of_ones_own_is_named_in_full() -> None:
    sent = request(service_account="builder@lab.iam.gserviceaccount.com")
    assert sent["serviceAccount"] == "projects/lab/serviceAccounts/builder@lab.iam.gserviceaccount.com"
    # Without a bucket for its log Cloud Build refuses such a request.
    assert sent["logsBucket"].startswith("gs://")


def test_a_repository_with_a_tag_of_its_own_gets_that_tag_too() -> None:
    names = names_of(PLAN, f"{REPOSITORY}:v7")
    assert names.wanted == (f"{REPOSITORY}:0123456789ab", f"{REPOSITORY}:v7")
    sent = request(names=names)
    assert flags(sent["steps"][-1], "--tag") == sent["images"] == list(names.wanted)
    assert flags(sent["steps"][0], "--tag") == [f"{REPOSITORY}:builder-0123456789ab"]


def test_a_registry_with_a_port_is_not_taken_for_a_tag() -> None:
    assert names_of(PLAN, "127.0.0.1:5000/digits").wanted == ("127.0.0.1:5000/digits:0123456789ab",)


def test_without_requirements_the_base_image_is_the_one_wanted_and_keeps_its_own_name() -> None:
    plan = replace(PLAN, steps=PLAN.steps[:2])
    *_, base, push = request(plan)["steps"]
    assert flags(base, "--tag") == [f"{REPOSITORY}:base-0123456789ab", f"{REPOSITORY}:0123456789ab"]
    assert push["args"] == ["push", f"{REPOSITORY}:base-0123456789ab"]
    assert request(plan)["images"] == [f"{REPOSITORY}:0123456789ab"]


def test_two_steps_of_one_kind_have_two_ids_and_two_tags() -> None:
    """As with image.dockerfile: the user's own file builds on the project's image; its result is made a node again."""
    first = replace(PLAN.last, reference="hvdcloud/project:first")
    names = names_of(replace(PLAN, steps=(*PLAN.steps[:2], first, PLAN.last)), REPOSITORY)
    assert [names.ids[step.reference] for step in (first, PLAN.last)] == ["project", "project-4"]
    assert names.content[first.reference] == f"{REPOSITORY}:first"
    assert names.content[PLAN.reference] == f"{REPOSITORY}:0123456789ab"


# --- the archive ------------------------------------------------------------------------------------------------------


def unpacked(context: Context) -> dict[str, bytes | None]:
    with tarfile.open(fileobj=io.BytesIO(b"".join(context.stream()))) as archive:
        files = ((member, archive.extractfile(member)) for member in archive.getmembers())
        return {member.name: file.read() if file else None for member, file in files}


def test_every_step_finds_its_context_in_the_folder_that_its_request_names() -> None:
    ids = names_of(PLAN, REPOSITORY).ids
    files = unpacked(merged({ids[step.reference]: step.context for step in PLAN.steps}, keep_ca_bundle=True))
    for step, sent in zip(PLAN.steps, (one for one in request()["steps"] if "dir" in one), strict=True):
        assert files[f"{sent['dir']}/{step.dockerfile}"] == step.context.hashed[0].content
        assert flags(sent, "--file") == [step.dockerfile]


def test_a_ca_bundle_that_only_this_machine_needs_stays_here() -> None:
    contexts = {"project": PLAN.last.context}
    assert unpacked(merged(contexts, keep_ca_bundle=False))["project/ca-bundle.crt"] == b""
    assert unpacked(merged(contexts, keep_ca_bundle=True))["project/ca-bundle.crt"]


def test_the_same_contexts_are_the_same_bytes() -> None:
    sent = [b"".join(merged({"x": tiny_plan("1").last.context}, keep_ca_bundle=True).stream()) for _ in range(2)]
    assert sent[0] == sent[1]
