"""Known vulnerabilities of the packages in an SBOM, as a scanner on this machine finds them: Trivy or Grype."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdcloud.errors import ImageError

SEVERITIES = ("critical", "high", "medium", "low", "negligible", "unknown")
"""What both scanners say, the worst first; only Grype says `negligible`."""
HOW_TO_GET_ONE = "install Trivy (https://trivy.dev) or Grype (https://github.com/anchore/grype), and it will be used"
# The first run fetches the scanner's database.
_DEADLINE_SECONDS = 600
_KEPT_LINES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Vulnerabilities:
    """What a scanner found.

    Attributes:
        counts: how many of each severity, every severity included.
        report: the scanner's own JSON.
    """

    scanner: str
    counts: Mapping[str, int]
    report: Path

    @property
    def summary(self) -> str:
        """`1 critical, 2 high`, or `none`."""
        found = [f"{count} {severity}" for severity, count in self.counts.items() if count]
        return ", ".join(found) or "none"


def _trivy_severities(report: Any) -> Iterable[str]:
    """https://trivy.dev/latest/docs/configuration/reporting/#json: what has nothing to tell is left out."""
    if "SchemaVersion" not in report:
        raise KeyError("SchemaVersion")
    found = [finding for result in report.get("Results") or () for finding in result.get("Vulnerabilities") or ()]
    return [finding["Severity"] for finding in found]


def _grype_severities(report: Any) -> Iterable[str]:
    """https://oss.anchore.com/docs/guides/vulnerability/json/"""
    return [match["vulnerability"]["severity"] for match in report["matches"]]


@dataclass(frozen=True, slots=True)
class _Scanner:
    """How to run one, and how to read what it prints."""

    name: str
    arguments: Callable[[Path], list[str]]
    severities: Callable[[Any], Iterable[str]]


_SCANNERS = (
    _Scanner("trivy", lambda sbom: ["sbom", "--quiet", "--format", "json", str(sbom)], _trivy_severities),
    _Scanner("grype", lambda sbom: ["--quiet", "--output", "json", f"sbom:{sbom}"], _grype_severities),
)


def scan(sbom: Path, *, report: Path) -> Vulnerabilities | None:
    """What the first scanner on PATH finds in an SBOM in CycloneDX, and writes to `report`; None: no scanner.

    Raises:
        ImageError: the scanner failed; `details` has its last lines. A report from before stays as it is.
    """
    for scanner in _SCANNERS:
        if program := shutil.which(scanner.name):
            return _run(scanner, program, sbom=sbom, report=report)
    return None


def _run(scanner: _Scanner, program: str, *, sbom: Path, report: Path) -> Vulnerabilities:
    arguments = scanner.arguments(sbom)
    hint = f"{scanner.name} {' '.join(arguments)}"
    try:
        done = subprocess.run(
            [program, *arguments], stdin=subprocess.DEVNULL, capture_output=True, timeout=_DEADLINE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ImageError(f"{scanner.name} did not scan {sbom}: {error}", hint=hint) from error
    # Not the exit code: a user's settings can make it depend on what was found.
    try:
        counts = Counter(severity.lower() for severity in scanner.severities(json.loads(done.stdout)))
    except (ValueError, KeyError, TypeError, AttributeError):
        last = "\n".join(done.stderr.decode(errors="replace").strip().splitlines()[-_KEPT_LINES:])
        said = f"{scanner.name} ended with exit code {done.returncode} and no report on {sbom}"
        raise ImageError(said, hint=hint, details=last) from None
    report.write_bytes(done.stdout)
    counts["unknown"] += sum(count for severity, count in counts.items() if severity not in SEVERITIES)
    known = {severity: counts[severity] for severity in SEVERITIES}
    return Vulnerabilities(scanner=scanner.name, counts=known, report=report)
