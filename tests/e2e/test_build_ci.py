"""`hvdcloud build --push --json` as a CI job runs it: no terminal, no questions, one document to read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.standins.registry import digest_of
from tests.support.gce_records import stands_for_its_image
from tests.support.harness import project_in

pytestmark = pytest.mark.engine


def test_tag_and_digest_are_in_the_document_and_the_same_again(
    tmp_path: Path, engine: Any, image: str, registry: str
) -> None:
    project = project_in(tmp_path, "t-ci", image={"repository": f"{registry}/hvdcloud/digits"})
    # No credentials of the developer's.
    project.environ["DOCKER_CONFIG"] = str(tmp_path / "docker")
    with stands_for_its_image(engine, project) as small:
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
