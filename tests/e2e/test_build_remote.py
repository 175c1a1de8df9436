"""`hvdcloud build --remote`, as a person types it: Cloud Build's stand-in builds the project's layer on this machine's
engine, on images that an earlier build seems to have pushed, and `up` would run what came of it."""

from __future__ import annotations

import io
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.config.file import load_config
from hvdcloud.image.cloudbuild.request import names_of
from hvdcloud.image.plan.steps import ImagePlan, plan_image
from hvdcloud.lifecycle.build_remote import MACHINE
from tests.standins.cloudbuild.errors import service_disabled
from tests.standins.compute import Records
from tests.support.cloud import PROJECT, Cloud, running_cloud
from tests.support.harness import Project, Screen, until

pytestmark = pytest.mark.engine

CREATE = "cloudbuild.projects.locations.builds.create"
# A builder image whose pip installs a file, can't find `missing`, and takes its time for `slow`.
BUILDER = r"""FROM debian:bookworm-slim
RUN printf '%s\n' '#!/bin/sh' \
    'for word; do requirements=$word; done' \
    'if grep -q missing "$requirements"; then' \
    '    echo "ERROR: No matching distribution found for missing"; exit 1; fi' \
    'if grep -q slow "$requirements"; then sleep 60; fi' \
    'cp "$requirements" /opt/requirements/installed' > /usr/local/bin/pip && chmod +x /usr/local/bin/pip
"""


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with running_cloud(tmp_path_factory.mktemp("cloud"), machines=False, backing=Records()) as cloud:
        yield cloud
        assert cloud.left() == []


@pytest.fixture(scope="module")
def pushed(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory, engine: Any) -> None:
    """The registry has the builder and the base image that every project's layer is built on."""
    plan = plan_of(make(cloud, tmp_path_factory.mktemp("first"), requirements="any\n"))
    content = names_of(plan, repository(cloud)).content
    login = {"username": "oauth2accesstoken", "password": cloud.emulator.keys.issue(cloud.emulator.keys.email)[0]}
    for step, dockerfile in zip(plan.steps, (BUILDER, "FROM scratch\nLABEL base=true\n"), strict=False):
        tag = content[step.reference]
        image, _ = engine.images.build(fileobj=io.BytesIO(dockerfile.encode()), tag=tag, rm=True)
        pushing = engine.api.push(tag, stream=True, decode=True, auth_config=login)
        assert [item for item in pushing if "error" in item] == []
        engine.images.remove(image.id, force=True)


@pytest.fixture
def faults(cloud: Cloud) -> Iterator[Any]:
    yield cloud.builds.faults
    cloud.builds.faults.clear()


def repository(cloud: Cloud) -> str:
    return f"{cloud.registry}/hvdcloud/remote"


def make(cloud: Cloud, root: Path, *, requirements: str, **settings: Any) -> Project:
    image = {"repository": repository(cloud), "remote": {"endpoint": cloud.builds.url}, "find_links": "."}
    project = cloud.project(root, "digits", image=image, **settings)
    project.write("requirements.txt", requirements)
    return project


def plan_of(project: Project) -> ImagePlan:
    config = load_config(project.folder / "hvdcloud.yaml", environ={})
    return plan_image(config.image, project_dir=config.project_dir, machine=MACHINE)


@pytest.mark.usefixtures("pushed")
def test_the_image_is_built_elsewhere_and_up_would_run_it(cloud: Cloud, tmp_path: Path, engine: Any) -> None:
    project = make(cloud, tmp_path, requirements="numpy\n")
    builds = len(cloud.builds.builds())

    built = project.hvdcloud("build", "--remote")
    assert "image: the layer for requirements.txt" in built.err
    assert "image: pushing the image" in built.err
    again = project.hvdcloud("build", "--remote", "--json").json["result"]

    reference, digest = plan_of(project).reference, again["digest"]
    tag = f"{repository(cloud)}:{reference.rpartition(':')[2]}"
    assert re.fullmatch(rf"{reference} built in \d+\.\d s\n{digest}\n", built.out)
    assert (again["cached"], again["tag"]) == (True, tag)
    (build,) = cloud.builds.builds()[builds:]
    assert [step["id"] for step in build["steps"]] == ["project"]
    assert build["results"]["images"][0]["digest"] == digest
    assert build["tags"][0] == "hvdcloud"

    request = json.loads(project.hvdcloud("up", "--dry-run", "--json").out)
    assert f"{repository(cloud)}@{digest}" in json.dumps(request)
    login = {"username": "oauth2accesstoken", "password": cloud.emulator.keys.issue(cloud.emulator.keys.email)[0]}
    image = engine.images.pull(f"{repository(cloud)}@{digest}", auth_config=login)
    assert image.labels["base"] == "true"
    engine.images.remove(image.id, force=True)


@pytest.mark.usefixtures("pushed")
def test_a_requirement_that_is_not_there_is_said_with_the_last_lines(cloud: Cloud, tmp_path: Path) -> None:
    project = make(cloud, tmp_path, requirements="missing\n")
    said = project.hvdcloud("build", "--remote", expect=6).err
    assert (
        "error: the layer for requirements.txt was not built: pip: No matching distribution found for missing" in said
    )
    assert "→ correct what pip names, in the file of image.requirements or in a package" in said


@pytest.mark.usefixtures("pushed")
def test_ctrl_c_cancels_the_build(cloud: Cloud, tmp_path: Path) -> None:
    project = make(cloud, tmp_path, requirements="slow\n")
    with project.started("build", "--remote", "--verbose") as process:
        screen = Screen(process)
        screen.wait_for("image: installing requirements.txt")
        process.send_signal(signal.SIGINT)
        assert screen.end(within=20) < 15
    assert process.returncode == 130, screen.text
    build = cloud.builds.builds()[-1]
    assert f"build {build['id']} of {plan_of(project).reference} is cancelled" in screen.text
    until(lambda: "finishTime" in cloud.builds.builds()[-1], seconds=20, what="the end of the build")
    assert cloud.builds.builds()[-1]["status"] == "CANCELLED"


@pytest.mark.usefixtures("pushed")
def test_an_api_that_is_off_says_how_to_switch_it_on(cloud: Cloud, tmp_path: Path, faults: Any) -> None:
    project = make(cloud, tmp_path, requirements="scipy\n")
    faults.add(service_disabled(PROJECT), method=CREATE)
    said = project.hvdcloud("build", "--remote", expect=3).err
    assert "cannot start a build: the Cloud Build API is switched off in project test-project" in said
    assert "→ gcloud services enable cloudbuild.googleapis.com --project=test-project, or https://" in said


def test_what_it_needs_is_said_before_anything_is_sent(cloud: Cloud, tmp_path: Path) -> None:
    asked = len(cloud.builds.entries)
    project = make(cloud, tmp_path, requirements="any\n", checkpoints={})
    assert "checkpoints.bucket names none" in project.hvdcloud("build", "--remote", expect=2).err
    image = {"remote": {"endpoint": cloud.builds.url}}
    project.configure(provider="gce", image=image, checkpoints={"bucket": "gs://bucket/runs"})
    assert "image.repository is not set" in project.hvdcloud("build", "--remote", expect=2).err
    refused = project.hvdcloud("build", "--remote", "--sbom", "sbom.json", expect=2).err
    assert "--sbom is for images that are built on this machine, with --remote there is none" in refused
    assert len(cloud.builds.entries) == asked
