"""What an image with a few packages holds."""

from __future__ import annotations

from datetime import datetime, timezone

from hvdcloud.image.publish.sbom import Contents, Package

DIGEST = "sha256:" + "0123456789abcdef" * 4
VENV = "/opt/venv/lib/python3.11/site-packages"
OTHER = "/opt/requirements/lib/python3.11/site-packages"
CONTENTS = Contents(
    image_id="sha256:" + "a" * 64,
    created=datetime(2026, 11, 21, 3, 4, 5, tzinfo=timezone.utc),
    packages=(
        Package(
            name="Jinja2",
            version="3.1.6",
            licenses=("BSD License",),
            places=(f"{OTHER}/jinja2-3.1.6.dist-info/METADATA", f"{VENV}/jinja2-3.1.6.dist-info/METADATA"),
        ),
        Package(
            name="torch",
            version="2.13.0+cpu",
            licenses=("Apache-2.0 AND BSD-3-Clause",),
            places=(f"{VENV}/torch-2.13.0+cpu.dist-info/METADATA",),
        ),
        Package(name="nameless", version=None, licenses=(), places=(f"{VENV}/nameless.egg-info",)),
        Package(name="two", version="1", licenses=("MIT License", "BSD License"), places=(f"{VENV}/two.egg-info",)),
    ),
)


def is_valid_cyclonedx(text: str) -> bool:
    """Whether an SBOM is what the schema of CycloneDX 1.6 allows."""
    # Compiles grammars for two seconds when it is imported, which no process need do that only collects tests.
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    return JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
