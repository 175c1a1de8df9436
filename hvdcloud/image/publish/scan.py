"""What a scanner on this machine finds: the packages of an image, and the known vulnerabilities of those in an SBOM.

Trivy or Grype; both read the image from the engine, not from a registry. They were not run while this was written: the
arguments and the formats are those of their documentation, which tests/standins/scanner.py holds.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdcloud import engine
from hvdcloud.errors import ImageError

SEVERITIES = ("critical", "high", "medium", "low", "negligible", "unknown")
"""What both scanners say, the worst first; only Grype says `negligible`."""
HOW_TO_GET_ONE = "install Trivy (https://trivy.dev) or Grype (https://github.com/anchore/grype), and it will be used"
"""For the line that says what is missing without."""
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
    packages: Callable[[str], list[str]]
    """The arguments that print what is in an image of the engine: CycloneDX, JSON."""
    arguments: Callable[[Path], list[str]]
    """Those that print the known vulnerabilities of an SBOM."""
    severities: Callable[[Any], Iterable[str]]


_SCANNERS = (
    _Scanner(
        "trivy",
        # https://trivy.dev/latest/docs/references/configuration/cli/trivy_image/
        lambda image: ["image", "--quiet", "--format", "cyclonedx", "--image-src", "docker", image],
        lambda sbom: ["sbom", "--quiet", "--format", "json", str(sbom)],
        _trivy_severities,
    ),
    _Scanner(
        "grype",
        # https://github.com/anchore/grype#supported-sources
        lambda image: ["--quiet", "--output", "cyclonedx-json", f"docker:{image}"],
        lambda sbom: ["--quiet", "--output", "json", f"sbom:{sbom}"],
        _grype_severities,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """What is in an image: packages of its system and of every language.

    Attributes:
        document: the scanner's CycloneDX document.
    """

    scanner: str
    document: Mapping[str, Any]


def inventory(reference: str) -> Inventory | None:
    """What the first scanner on PATH finds in an image of the engine; None: no scanner.

    Raises:
        ImageError: the scanner failed; `details` has its last lines.
    """
    if (found := _first()) is None:
        return None
    scanner, program = found
    arguments = scanner.packages(reference)
    done = _run(program, arguments, what=reference)
    try:
        document = json.loads(done.stdout)
        if document["bomFormat"] != "CycloneDX" or not document["components"]:
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise _failed(scanner, arguments, done, f"no list of what is in {reference}") from None
    return Inventory(scanner=scanner.name, document=document)


def available() -> str | None:
    """The name of the scanner that is used; None: there is none."""
    return found[0].name if (found := _first()) else None


def _first() -> tuple[_Scanner, str] | None:
    """The first scanner on PATH, and its path."""
    found = ((scanner, shutil.which(scanner.name)) for scanner in _SCANNERS)
    return next(((scanner, program) for scanner, program in found if program), None)


def scan(sbom: Path, *, report: Path) -> Vulnerabilities | None:
    """What the first scanner on PATH finds in an SBOM in CycloneDX, and writes to `report`; None: no scanner.

    Raises:
        ImageError: the scanner failed; `details` has its last lines. A report from before stays as it is.
    """
    if (found := _first()) is None:
        return None
    scanner, program = found
    arguments = scanner.arguments(sbom.absolute())
    done = _run(program, arguments, what=str(sbom))
    # Not the exit code: a user's settings can make it depend on what was found.
    try:
        counts = Counter(severity.lower() for severity in scanner.severities(json.loads(done.stdout)))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _failed(scanner, arguments, done, f"no report on {sbom}") from None
    report.write_bytes(done.stdout)
    counts["unknown"] += sum(count for severity, count in counts.items() if severity not in SEVERITIES)
    known = {severity: counts[severity] for severity in SEVERITIES}
    return Vulnerabilities(scanner=scanner.name, counts=known, report=report)


def _run(program: str, arguments: list[str], *, what: str) -> subprocess.CompletedProcess[bytes]:
    """What a scanner prints. Raises ImageError: it cannot be run, or takes too long."""
    try:
        return subprocess.run(
            [program, *arguments],
            env=engine.address_environment(),
            # Not in the project's folder, whose trivy.yaml and .grype.yaml would count.
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_DEADLINE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        name = Path(program).name
        raise ImageError(f"{name} did not scan {what}: {error}", hint=f"{name} {' '.join(arguments)}") from error


def _failed(scanner: _Scanner, arguments: list[str], done: subprocess.CompletedProcess[bytes], what: str) -> ImageError:
    last = "\n".join(done.stderr.decode(errors="replace").strip().splitlines()[-_KEPT_LINES:])
    said = f"{scanner.name} ended with exit code {done.returncode} and {what}"
    return ImageError(said, hint=f"{scanner.name} {' '.join(arguments)}", details=last)
