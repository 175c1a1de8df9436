"""`.github/workflows/image.yml`, which users copy: what its build step does with what hvdcloud prints."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.workflows import read_workflow

DIGEST = "sha256:" + "0123456789abcdef" * 4
TAG = "us-central1-docker.pkg.dev/lab/hvdcloud/digits:40a7624386cd"


@pytest.fixture(scope="module")
def workflow() -> dict[Any, Any]:
    return read_workflow("image.yml")


def test_no_key_is_needed_and_no_more_is_allowed_than_that(workflow: dict[Any, Any]) -> None:
    assert workflow["permissions"] == {}
    assert workflow["jobs"]["image"]["permissions"] == {"contents": "read", "id-token": "write"}
    assert workflow["jobs"]["sign"]["permissions"] == {"id-token": "write", "attestations": "write"}
    assert "secrets." not in str(workflow)
    # YAML's `on` is true.
    assert list(workflow[True]) == ["workflow_dispatch"]


def test_what_is_signed_is_the_digest_that_was_pushed_and_only_where_that_is_asked_for(
    workflow: dict[Any, Any], tmp_path: Path
) -> None:
    job = workflow["jobs"]["sign"]
    assert (job["needs"], job["if"]) == ("image", "inputs.sign || vars.SIGN_IMAGES == 'true'")
    assert workflow[True]["workflow_dispatch"]["inputs"]["sign"]["default"] is False
    assert job["env"]["DIGEST"] == "${{ needs.image.outputs.digest }}"
    (provenance,) = [step["with"] for step in job["steps"] if "attest-build-provenance" in step.get("uses", "")]
    assert provenance["subject-digest"] == job["env"]["DIGEST"]
    assert provenance["subject-name"] == job["env"]["IMAGE_REPOSITORY"]

    called = tmp_path / "called"
    for name in ("cosign", "docker"):
        (tmp_path / name).write_text(
            f'#!/bin/sh\necho {name} "$@" >> {called}\n[ {name} = cosign ] || cat >> {called}\n'
        )
        (tmp_path / name).chmod(0o755)
    environment = {"IMAGE_REPOSITORY": TAG.rpartition(":")[0], "DIGEST": DIGEST, "TOKEN": "ya29.token"}
    for step in job["steps"]:
        if "run" in step:
            subprocess.run(
                ["bash", "--noprofile", "--norc", "-e", "-c", step["run"]],
                env={**environment, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
                check=True,
            )
    assert called.read_text().splitlines() == [
        "docker login --username oauth2accesstoken --password-stdin https://us-central1-docker.pkg.dev",
        "ya29.token",
        f"cosign sign --yes us-central1-docker.pkg.dev/lab/hvdcloud/digits@{DIGEST}",
    ]


def test_hvdcloud_is_installed_from_a_commit_and_its_needs_by_their_hashes(workflow: dict[Any, Any]) -> None:
    steps = workflow["jobs"]["image"]["steps"]
    (source,) = [step["with"] for step in steps if step.get("with", {}).get("path") == ".hvdcloud"]
    assert source["ref"] == "${{ vars.HVDCLOUD_COMMIT || github.sha }}"
    (install,) = [step for step in steps if step.get("name") == "Install hvdcloud"]
    assert (install["working-directory"], install["run"].split()[0]) == (".hvdcloud", "tools/setup.sh")
    # Nothing that is installed has Google's credentials.
    names = [step.get("uses", step.get("name")).partition("@")[0] for step in steps]
    assert names.index("Install hvdcloud") < names.index("google-github-actions/auth")
