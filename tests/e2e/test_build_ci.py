"""`hvdcloud build --push --json` as a CI job runs it: no terminal, no questions, one document to read."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.config.model import ImageConfig
from hvdcloud.image.build.builder import find_plan
from tests.standins.registry import digest_of
from tests.support.gce_records import small_image
from tests.support.harness import Project, project_in

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def requirement() -> str:
    """Of no other project, so that a small image can stand for the one that would be built."""
    return f"needed-here-only-{secrets.token_hex(8)}\n"


@pytest.fixture(scope="module")
def small(engine: Any, requirement: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """That image: the engine takes half a minute to compress the real one for a registry."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "requirements.txt").write_text(requirement)
    reference = find_plan(ImageConfig(), project_dir=folder).reference
    with small_image(engine, reference):
        yield reference


@pytest.fixture
def project(tmp_path: Path, image: str) -> Project:
    """One whose image exists already, so that nothing has to be built."""
    project = project_in(tmp_path, "t-ci")
    # No credentials of the developer's.
    project.environ["DOCKER_CONFIG"] = str(tmp_path / "docker")
    return project


@pytest.fixture
def pushes_to(project: Project, requirement: str, small: str, engine: Any) -> Iterator[Callable[[str], None]]:
    """Sets image.repository; the name that the push gives the image, the small one, is taken from it afterwards."""
    repositories: list[str] = []

    def call(repository: str) -> None:
        project.write("requirements.txt", requirement)
        project.configure(image={"repository": repository})
        repositories.append(repository)

    yield call
    for tag in engine.images.get(small).tags:
        if tag.rpartition(":")[0] in repositories:
            engine.images.remove(tag)


def test_tag_and_digest_are_in_the_document_and_the_same_again(
    project: Project, small: str, registry: str, pushes_to: Callable[[str], None]
) -> None:
    pushes_to(f"{registry}/hvdcloud/digits")
    ended = project.hvdcloud("build", "--push", "--json")
    result = ended.json["result"]
    tag = small.partition(":")[2]
    digest = digest_of(registry, "hvdcloud/digits", tag)
    assert (result["reference"], result["tag"]) == (small, f"{registry}/hvdcloud/digits:{tag}")
    assert result["digest"] == digest
    assert "\033" not in ended.out + ended.err
    assert project.hvdcloud("push", "--json").json["result"]["digest"] == digest
    local = project.hvdcloud("build", "--json").json["result"]
    assert (local["tag"], local["digest"]) == (None, None)
