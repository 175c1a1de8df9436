"""Trivy and Grype as hvdcloud calls them: they refuse what the real ones refuse, and print documents of their shape.

Trivy: https://trivy.dev/latest/docs/references/configuration/cli/trivy_image/ and /docs/supply-chain/sbom/.
Grype: https://github.com/anchore/grype, whose CycloneDX also has the vulnerabilities.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import uuid
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NoReturn

SEVERITIES = {"openssh-server": "CRITICAL", "setuptools": "HIGH", "libc6": "LOW"}
"""What the stand-in's database knows."""
PYTHON = {"setuptools": "65.5.0", "torch": "2.13.0+cpu"}
DEBIAN = {"libc6": "2.36-9+deb12u13", "openmpi-bin": "4.1.4-3+b1", "openssh-server": "1:9.2p1-2+deb12u7"}


def install(folder: Path, name: str) -> None:
    """Put `trivy` or `grype` into a folder; what it was called with is appended to NAME.called there."""
    program = folder / name
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} {name} {folder}/{name}.called "$@"\n')
    program.chmod(0o755)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # Both are made with Cobra, which ends so.
        self.exit(1, f"FATAL\tFatal error\t{message}\n")


def main(name: str, called: str, *arguments: str) -> None:
    """Be the program."""
    with Path(called).open("a") as file:
        file.write(json.dumps({"arguments": arguments, "DOCKER_HOST": os.environ.get("DOCKER_HOST")}) + "\n")
    found = (_trivy if name == "trivy" else _grype)(arguments)
    sys.stdout.write(json.dumps(found, indent=2) + "\n")


def _trivy(arguments: tuple[str, ...]) -> dict[str, Any]:
    parser = _Parser("trivy", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    formats = ["table", "json", "template", "sarif", "cyclonedx", "spdx", "spdx-json", "github", "cosign-vuln"]
    for command in ("image", "sbom"):
        each = commands.add_parser(command, allow_abbrev=False)
        each.add_argument("-q", "--quiet", action="store_true")
        each.add_argument("-f", "--format", choices=formats, default="table")
        each.add_argument("target")
        if command == "image":
            each.add_argument("--image-src", default="docker,containerd,podman,remote")
    asked = parser.parse_args(arguments)
    if asked.command == "sbom":
        assert asked.format == "json"
        return {
            "SchemaVersion": 2,
            "ArtifactName": asked.target,
            "ArtifactType": "cyclonedx",
            "Results": [
                {
                    "Target": asked.target,
                    "Vulnerabilities": [
                        {"VulnerabilityID": f"CVE-2026-{number}", "PkgName": package, "Severity": severity}
                        for number, (package, severity) in enumerate(_known(Path(asked.target)))
                    ],
                }
            ],
        }
    assert (asked.format, asked.image_src) == ("cyclonedx", "docker"), "an image of a registry may be another one"
    image = f"pkg:oci/digits@sha256%3A{'e' * 64}?arch=amd64&repository_url=somewhere"
    system = str(uuid.uuid4())
    python = {str(uuid.uuid4()) if package == "setuptools" else f"pkg:pypi/{package}@{version}": (package, version)
              for package, version in PYTHON.items()}  # fmt: skip
    debian = {f"pkg:deb/debian/{package}@{version}?arch=amd64&distro=debian-12.12": (package, version)
              for package, version in DEBIAN.items()}  # fmt: skip
    components = [
        {"bom-ref": system, "type": "operating-system", "name": "debian", "version": "12.12",
         "properties": [{"name": "aquasecurity:trivy:Class", "value": "os-pkgs"}]},
        *(
            {"bom-ref": ref, "type": "library", "name": package, "version": version,
             "purl": ref if ref.startswith("pkg:") else f"pkg:pypi/{package}@{version}",
             "properties": [{"name": "aquasecurity:trivy:PkgID", "value": f"{package}@{version}"}]}
            for ref, (package, version) in {**debian, **python}.items()
        ),
    ]  # fmt: skip
    return {
        **_document({"group": "aquasecurity", "name": "trivy", "version": "0.69.1"}, {
            "bom-ref": image,
            "type": "container",
            "name": asked.target,
            "purl": image,
            "properties": [
                {"name": "aquasecurity:trivy:DiffID", "value": "sha256:" + "d" * 64},
                {"name": "aquasecurity:trivy:RepoDigest", "value": f"somewhere@sha256:{uuid.uuid4().hex}"},
                {"name": "aquasecurity:trivy:RepoTag", "value": asked.target},
                {"name": "aquasecurity:trivy:SchemaVersion", "value": "2"},
            ],
        }),
        "components": components,
        "dependencies": [
            {"ref": image, "dependsOn": [system, *python]},
            {"ref": system, "dependsOn": list(debian)},
            *({"ref": ref, "dependsOn": []} for ref in (*debian, *python)),
        ],
        "vulnerabilities": [],
    }  # fmt: skip


def _grype(arguments: tuple[str, ...]) -> dict[str, Any]:
    parser = _Parser("grype", allow_abbrev=False)
    parser.add_argument("-q", "--quiet", action="store_true")
    formats = ["json", "table", "cyclonedx", "cyclonedx-json", "sarif", "template"]
    parser.add_argument("-o", "--output", choices=formats, default="table")
    parser.add_argument("target")
    asked = parser.parse_args(arguments)
    scheme, _, target = asked.target.partition(":")
    if scheme == "sbom":
        assert asked.output == "json"
        matches = [
            {"vulnerability": {"id": f"CVE-2026-{number}", "severity": severity.title()}, "artifact": {"name": package}}
            for number, (package, severity) in enumerate(_known(Path(target)))
        ]
        return {"matches": matches, "descriptor": {"name": "grype", "version": "0.104.1"}}
    assert (scheme, asked.output) == ("docker", "cyclonedx-json"), "an image of a registry may be another one"
    components = [
        {"bom-ref": f"pkg:{kind}/{package}@{version}?package-id={number:016x}", "type": "library", "name": package,
         "version": version, "purl": f"pkg:{kind}/{package}@{version}"}
        for kind, packages in (("deb/debian", DEBIAN), ("pypi", PYTHON))
        for number, (package, version) in enumerate(packages.items())
    ]  # fmt: skip
    system = {"bom-ref": "os:debian@12", "type": "operating-system", "name": "debian", "version": "12"}
    affected = [{"ref": each["bom-ref"]} for each in components if each["name"] in SEVERITIES]
    return {
        **_document({"author": "anchore", "name": "grype", "version": "0.104.1"}, {
            "bom-ref": uuid.uuid4().hex[:16], "type": "container", "name": target.rpartition(":")[0],
            "version": "sha256:" + "f" * 64,
        }),
        "components": [*components, system],
        "vulnerabilities": [{"bom-ref": f"urn:uuid:{uuid.uuid4()}", "id": "CVE-2026-1", "affects": affected}],
    }  # fmt: skip


def _document(scanner: dict[str, str], image: dict[str, Any]) -> dict[str, Any]:
    """What both begin a CycloneDX document with."""
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid4()}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.now(timezone.utc).isoformat(),
            "tools": {"components": [{"type": "application", **scanner}]},
            "component": image,
        },
    }


def _known(sbom: Path) -> list[tuple[str, str]]:
    """The packages of an SBOM that the database knows, with the severity."""
    document = json.loads(sbom.read_text())
    assert document["bomFormat"] == "CycloneDX"
    names = sorted({each["name"] for each in document["components"]} & SEVERITIES.keys())
    return [(name, SEVERITIES[name]) for name in names]


if __name__ == "__main__":
    main(*sys.argv[1:])
