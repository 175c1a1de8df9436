"""`hvdcloud build --push --json` as a CI job runs it: no terminal, no questions, one document to read."""

from __future__ import annotations

import io
import json
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from hvdcloud.config.model import ImageConfig
from hvdcloud.image.build.builder import find_plan
from hvdcloud.image.publish.oci import OCI_INDEX, OCI_MANIFEST
from tests.standins import scanner as standin
from tests.standins.google_account import service_account
from tests.standins.registry import free_port, google_like_registry, running_registry
from tests.support.harness import Project, project_in

pytestmark = pytest.mark.engine

# Debian, Python and the node program's packages: what a list of packages needs.
SMALL = """
FROM debian:bookworm-slim
COPY --from={image} /usr/bin/python3.11 /usr/bin/python3
COPY --from={image} /usr/lib/python3.11 /usr/lib/python3.11
COPY --from={image} /usr/lib/*-linux-gnu/libexpat.so.1 /usr/lib/
COPY --from={image} /opt/hvdcloud/venv /opt/hvdcloud/venv
"""


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of all registries here: an image of a gigabyte is sent to it once."""
    return tmp_path_factory.mktemp("registry")


@pytest.fixture(scope="module")
def registry(storage: Path) -> Iterator[str]:
    with running_registry(storage, {}) as host:
        yield host


@pytest.fixture(scope="module")
def requirement() -> str:
    """Of no other project, so that a small image can stand for the one that would be built."""
    return f"needed-here-only-{secrets.token_hex(8)}\n"


@pytest.fixture(scope="module")
def small(engine: Any, image: str, requirement: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """That image: the engine takes half a minute to compress the real one for a registry."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "requirements.txt").write_text(requirement)
    reference = find_plan(ImageConfig(), project_dir=folder).reference
    engine.images.build(fileobj=io.BytesIO(SMALL.format(image=image).encode()), tag=reference, rm=True, forcerm=True)
    yield reference
    engine.images.remove(reference, force=True)


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


def programs(project: Project) -> Path:
    """A folder on the command's PATH."""
    folder = project.folder / "bin"
    folder.mkdir()
    project.environ["PATH"] = f"{folder}:{os.environ['PATH']}"
    return folder


def manifest(host: str, path: str, reference: str, accept: str) -> requests.Response:
    return requests.get(f"http://{host}/v2/{path}/manifests/{reference}", headers={"Accept": accept}, timeout=10)


def test_tag_digest_sbom_and_report_are_in_the_document(
    project: Project, small: str, registry: str, pushes_to: Callable[[str], None]
) -> None:
    standin.install(programs(project), "trivy")
    pushes_to(f"{registry}/hvdcloud/digits")
    ended = project.hvdcloud("build", "--push", "--json", "--sbom", "sbom.cdx.json")
    result = ended.json["result"]
    tag = small.partition(":")[2]
    docker = "application/vnd.docker.distribution.manifest.v2+json"
    digest = manifest(registry, "hvdcloud/digits", tag, docker).headers["Docker-Content-Digest"]
    assert (result["reference"], result["tag"]) == (small, f"{registry}/hvdcloud/digits:{tag}")
    assert result["digest"] == digest

    written = json.loads((project.folder / "sbom.cdx.json").read_text())
    assert written["metadata"]["component"]["version"] == digest
    assert result["sbom"]["path"] == "sbom.cdx.json"
    assert (result["sbom"]["packages"], result["sbom"]["scanner"]) == (5, "trivy")
    assert "openssh-server" in {each["name"] for each in written["components"]}

    (entry,) = manifest(registry, "hvdcloud/digits", digest.replace(":", "-"), OCI_INDEX).json()["manifests"]
    assert result["sbom"]["digest"] == entry["digest"]
    (layer,) = manifest(registry, "hvdcloud/digits", entry["digest"], OCI_MANIFEST).json()["layers"]
    stored = requests.get(f"http://{registry}/v2/hvdcloud/digits/blobs/{layer['digest']}", timeout=10).content
    assert stored == (project.folder / "sbom.cdx.json").read_bytes()

    found = result["vulnerabilities"]
    assert (found["scanner"], found["counts"]["critical"]) == ("trivy", 1)
    assert json.loads((project.folder / found["report"]).read_text())["SchemaVersion"] == 2
    assert "known vulnerabilities of its packages (trivy): 1 critical, 1 high, 1 low" in ended.err
    again = project.hvdcloud("push", "--json").json["result"]
    assert again["sbom"]["digest"] == entry["digest"]
    assert "\033" not in ended.out + ended.err


def test_again_gives_the_same_and_without_a_push_there_is_only_the_file(
    project: Project, registry: str, pushes_to: Callable[[str], None]
) -> None:
    pushes_to(f"{registry}/hvdcloud/again")
    first, second = (project.hvdcloud("push", "--json").json["result"] for _ in range(2))
    assert first["sbom"] == second["sbom"]
    assert (first["sbom"]["path"], first["vulnerabilities"]) == (None, None)
    ended = project.hvdcloud("build", "--json", "--sbom", "sbom.json")
    assert ended.err.count("sshd, libc, Open MPI and what else is in its system are not looked at") == 1
    assert "install Trivy (https://trivy.dev) or Grype" in ended.err
    local = ended.json["result"]
    assert (local["tag"], local["digest"], local["sbom"]["digest"]) == (None, None, None)
    assert (project.folder / "sbom.json").is_file()
    assert project.hvdcloud("build", "--json").json["result"]["sbom"] is None


def test_a_scanner_that_fails_fails_nothing(project: Project) -> None:
    program = programs(project) / "trivy"
    program.write_text("#!/bin/sh\necho no report\n")
    program.chmod(0o755)
    ended = project.hvdcloud("build", "--json", "--sbom", "sbom.json")
    result = ended.json["result"]
    assert result["vulnerabilities"] is None
    assert "Open MPI and what else is in its system are not looked at: trivy ended with exit code 0" in ended.err
    written = json.loads((project.folder / "sbom.json").read_text())
    assert result["sbom"]["packages"] == len(written["components"]) > 40
    assert result["sbom"]["scanner"] is None
    assert "warning: there is no report on vulnerabilities: trivy ended with exit code 0" in ended.err


def test_a_registry_that_takes_no_sbom_does_not_fail_the_push(
    project: Project, tmp_path: Path, storage: Path, pushes_to: Callable[[str], None]
) -> None:
    allowed = {"ya29.push": ("pull", "push"), "ya29.sbom": ("pull",)}
    port, token_port = free_port(), free_port()
    host = f"127.0.0.1:{port}"
    project.environ |= {
        "HVDCLOUD_GOOGLE_REGISTRIES": host,
        "GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "key.json"),
    }
    pushes_to(f"{host}/hvdcloud/digits")
    places: dict[str, Any] = {"addresses": ["127.0.0.1"], "port": port, "token_port": token_port}
    with service_account(*allowed) as account, google_like_registry(storage, allowed.get, **places):
        account.write(tmp_path / "key.json")
        ended = project.hvdcloud("build", "--push", "--json", "--sbom", "sbom.json")
    result = ended.json["result"]
    assert result["digest"].startswith("sha256:")
    assert result["sbom"]["digest"] is None
    assert (
        json.loads((project.folder / "sbom.json").read_text())["metadata"]["component"]["version"] == result["digest"]
    )
    assert "warning: the image is pushed, but its SBOM is not beside it: " in ended.err
    assert "roles/artifactregistry.writer" in ended.err


def test_a_failed_build_ends_with_6_and_the_failing_lines(
    project: Project, registry: str, pushes_to: Callable[[str], None]
) -> None:
    pushes_to(f"{registry}/hvdcloud/failed")
    project.write("requirements.txt", "hvdcloud-no-such-package==9.9\n")
    ended = project.hvdcloud("build", "--push", "--json", "--sbom", "sbom.json", expect=6)
    assert ended.json["result"] is None
    error = ended.json["error"]
    assert "hvdcloud-no-such-package==9.9" in error["message"]
    assert "ERROR: No matching distribution found for hvdcloud-no-such-package==9.9" in error["details"]
    assert not (project.folder / "sbom.json").exists()


@pytest.mark.parametrize(
    ("path", "why"), [("gone/sbom.json", "there is no folder gone"), (".", "that is a folder")], ids=["gone", "folder"]
)
def test_a_place_that_cannot_be_written_is_refused_before_the_build(project: Project, path: str, why: str) -> None:
    project.write("requirements.txt", "hvdcloud-no-such-package==9.9\n")
    assert why in project.hvdcloud("build", "--sbom", path, expect=2).err
