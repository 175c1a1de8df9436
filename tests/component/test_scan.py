"""Reports on vulnerabilities, by programs that print what Trivy and Grype do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.errors import ImageError
from hvdcloud.image.publish.scan import scan

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
