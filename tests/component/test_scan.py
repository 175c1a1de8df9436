"""What is in an image, and its known vulnerabilities, by programs that print what Trivy and Grype do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.errors import ImageError
from hvdcloud.image.publish.scan import available, inventory, scan
from hvdcloud.image.publish.scanned import Scanned, document
from tests.standins import scanner as standin
from tests.support.sbom_contents import CONTENTS, DIGEST, is_valid_cyclonedx

# https://trivy.dev/latest/docs/configuration/reporting/#json
TRIVY = {
    "SchemaVersion": 2,
    "ArtifactName": "sbom.cdx.json",
    "ArtifactType": "cyclonedx",
    "Results": [
        {
            "Target": "Python",
            "Class": "lang-pkgs",
            "Type": "python-pkg",
            "Vulnerabilities": [
                {
                    "VulnerabilityID": "CVE-2024-6345",
                    "PkgName": "setuptools",
                    "InstalledVersion": "65.5.0",
                    "FixedVersion": "70.0.0",
                    "Severity": "HIGH",
                },
                {"VulnerabilityID": "CVE-2025-32434", "PkgName": "torch", "Severity": "CRITICAL"},
                {"VulnerabilityID": "CVE-2024-1", "PkgName": "torch", "Severity": "HIGH"},
                {"VulnerabilityID": "CVE-2024-2", "PkgName": "torch", "Severity": "UNKNOWN"},
            ],
        },
        {"Target": "nothing", "Class": "lang-pkgs", "Type": "python-pkg"},
    ],
}
# https://oss.anchore.com/docs/guides/vulnerability/json/
GRYPE = {
    "matches": [
        {
            "vulnerability": {"id": "GHSA-cx63-2mw6-8hw5", "severity": "High", "fix": {"state": "fixed"}},
            "relatedVulnerabilities": [{"id": "CVE-2024-6345", "severity": "High"}],
            "matchDetails": [{"type": "exact-direct-match", "matcher": "python-matcher"}],
            "artifact": {"name": "setuptools", "version": "65.5.0", "type": "python"},
        },
        {"vulnerability": {"id": "CVE-2020-1", "severity": "Negligible"}, "artifact": {"name": "numpy"}},
        {"vulnerability": {"id": "CVE-2020-2", "severity": "Something new"}, "artifact": {"name": "numpy"}},
    ],
    "descriptor": {"name": "grype", "version": "0.104.1"},
}
NONE = dict.fromkeys(("critical", "high", "medium", "low", "negligible", "unknown"), 0)


class Bench:
    """A PATH with nothing on it but what the test puts there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sbom = folder / "sbom.cdx.json"
        self.sbom.write_text("{}")
        self.report = folder / "report.json"

    def program(self, name: str, output: Any, *, code: int = 0, complaint: str = "") -> None:
        """Prints `output`, and what it was called with into a file."""
        text = output if isinstance(output, str) else json.dumps(output)
        (self.folder / f"{name}.out").write_text(f"{text}\n")
        path = self.folder / name
        path.write_text(
            f'#!/bin/sh\necho "$@" > \'{self.folder}/{name}.called\'\nwhile read -r line; do echo "$line"; done '
            f"< '{self.folder}/{name}.out'\necho '{complaint}' >&2\nexit {code}\n"
        )
        path.chmod(0o755)

    def called(self, name: str) -> str:
        return (self.folder / f"{name}.called").read_text().strip()


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("PATH", str(tmp_path))
    return Bench(tmp_path)


def test_without_a_scanner_there_is_no_report(bench: Bench) -> None:
    assert scan(bench.sbom, report=bench.report) is None
    assert not bench.report.exists()


def test_trivy_is_asked_before_grype_and_its_findings_are_counted(bench: Bench) -> None:
    bench.program("trivy", TRIVY)
    bench.program("grype", GRYPE)
    found = scan(bench.sbom, report=bench.report)
    assert found is not None
    assert (found.scanner, found.report) == ("trivy", bench.report)
    assert found.counts == {**NONE, "critical": 1, "high": 2, "unknown": 1}
    assert found.summary == "1 critical, 2 high, 1 unknown"
    assert json.loads(bench.report.read_text()) == TRIVY
    assert bench.called("trivy") == f"sbom --quiet --format json {bench.sbom}"
    assert not (bench.folder / "grype.called").exists()


def test_grype_is_asked_where_trivy_is_not(bench: Bench) -> None:
    bench.program("grype", GRYPE)
    found = scan(bench.sbom, report=bench.report)
    assert found is not None
    assert found.counts == {**NONE, "high": 1, "negligible": 1, "unknown": 1}
    assert bench.called("grype") == f"--quiet --output json sbom:{bench.sbom}"


@pytest.mark.parametrize(
    ("scanner", "report"),
    [("trivy", {"SchemaVersion": 2, "Results": []}), ("trivy", {"SchemaVersion": 2}), ("grype", {"matches": []})],
)
def test_nothing_found_is_said(bench: Bench, scanner: str, report: dict[str, Any]) -> None:
    bench.program(scanner, report)
    found = scan(bench.sbom, report=bench.report)
    assert found is not None
    assert (found.counts, found.summary) == (NONE, "none")


def test_an_exit_code_that_means_findings_is_not_a_failure(bench: Bench) -> None:
    bench.program("grype", GRYPE, code=2, complaint="discovered vulnerabilities at or above the severity threshold")
    found = scan(bench.sbom, report=bench.report)
    assert found is not None
    assert found.counts["high"] == 1


@pytest.mark.parametrize("output", ["", "not JSON", "{}", "[]", '{"error": "no"}'])
@pytest.mark.parametrize("scanner", ["trivy", "grype"])
def test_a_scanner_that_fails_is_quoted_and_an_earlier_report_stays(bench: Bench, scanner: str, output: str) -> None:
    bench.report.write_text("earlier")
    bench.program(scanner, output, code=1, complaint="FATAL: failed to download the database")
    with pytest.raises(ImageError, match=f"{scanner} ended with exit code 1") as raised:
        scan(bench.sbom, report=bench.report)
    assert "failed to download the database" in raised.value.details
    assert raised.value.hint.startswith(f"{scanner} ")
    assert bench.report.read_text() == "earlier"


def test_a_program_that_cannot_be_run_is_no_scanner_that_found_nothing(bench: Bench) -> None:
    bench.program("trivy", TRIVY)
    (bench.folder / "trivy").write_text("#!/no/such/interpreter\n")
    with pytest.raises(ImageError, match="trivy did not scan"):
        scan(bench.sbom, report=bench.report)


# --- what is in an image ------------------------------------------------------------------------------------------


def scanned(reference: str) -> Scanned:
    found = inventory(reference)
    assert found is not None
    return Scanned(image_id=CONTENTS.image_id, created=CONTENTS.created, inventory=found)


def test_without_a_scanner_nothing_is_asked_what_is_in_an_image(bench: Bench) -> None:
    assert available() is None
    assert inventory("hvdcloud/project:1") is None


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("trivy", ["image", "--quiet", "--format", "cyclonedx", "--image-src", "docker", "hvdcloud/project:1"]),
        ("grype", ["--quiet", "--output", "cyclonedx-json", "docker:hvdcloud/project:1"]),
    ],
)
def test_a_scanner_lists_the_packages_of_the_system_too_and_then_knows_their_vulnerabilities(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, name: str, arguments: list[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///run/another.sock")
    standin.install(bench.folder, name)

    found = scanned("hvdcloud/project:1")

    assert (available(), found.inventory.scanner) == (name, name)
    names = {each["name"] for each in found.packages}
    assert names == {"libc6", "openmpi-bin", "openssh-server", "setuptools", "torch"}
    assert json.loads(bench.called(name)) == {"arguments": arguments, "DOCKER_HOST": "unix:///run/another.sock"}
    bench.sbom.write_bytes(document(found, name="gcr.io/lab/digits", digest=DIGEST))
    known = scan(bench.sbom, report=bench.report)
    assert known is not None
    assert known.counts == {**NONE, "critical": 1, "high": 1, "low": 1}


@pytest.mark.parametrize("name", ["trivy", "grype"])
def test_the_sbom_of_a_scanner_is_about_the_image_and_the_same_for_the_same_image(bench: Bench, name: str) -> None:
    standin.install(bench.folder, name)

    first, second = (document(scanned(tag), name="gcr.io/lab/digits", digest=DIGEST) for tag in ("a:1", "b:2"))

    assert first == second
    assert is_valid_cyclonedx(first.decode())
    content = json.loads(first)
    image = content["metadata"]["component"]
    assert (image["type"], image["name"], image["version"]) == ("container", "gcr.io/lab/digits", DIGEST)
    assert image["purl"] == f"pkg:oci/digits@{DIGEST}?repository_url=gcr.io/lab/digits"
    assert content["metadata"]["timestamp"] == "2026-11-21T03:04:05+00:00"
    assert content["metadata"]["tools"]["components"][0]["name"] == name
    assert "vulnerabilities" not in content
    refs = {"image", *(each["bom-ref"] for each in content["components"])}
    named = [ref for each in content.get("dependencies", []) for ref in (each["ref"], *each["dependsOn"])]
    assert set(named) <= refs
    other = Scanned(image_id="sha256:" + "b" * 64, created=CONTENTS.created, inventory=scanned("a:1").inventory)
    assert json.loads(document(other, name="x"))["serialNumber"] != content["serialNumber"]


@pytest.mark.parametrize("output", ["", "{}", "[]", TRIVY, {"bomFormat": "CycloneDX", "components": []}])
def test_a_scanner_that_lists_nothing_is_quoted(bench: Bench, output: Any) -> None:
    bench.program("trivy", output, code=1, complaint="FATAL: unable to find the image in docker")
    with pytest.raises(ImageError, match="trivy ended with exit code 1 and no list of what is in digits:1") as raised:
        inventory("digits:1")
    assert "unable to find the image" in raised.value.details
    assert raised.value.hint == "trivy image --quiet --format cyclonedx --image-src docker digits:1"
