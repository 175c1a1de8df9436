"""What an image with a few packages holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

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
    # A tenth of a second, which no process need spend that only collects tests.
    with _one_grammar():
        from cyclonedx.schema import SchemaVersion
        from cyclonedx.validation.json import JsonStrictValidator

    return JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None


@contextmanager
def _one_grammar() -> Iterator[None]:
    """rfc3987_syntax compiles 38 grammars while it is imported, for 3 s of CPU; the validator uses the first."""
    import lark

    compiled = lark.Lark
    found: list[Any] = []

    def first(*arguments: Any, **options: Any) -> Any:
        if not found:
            found.append(compiled(*arguments, **options))
        return found[0]

    lark.Lark = first
    try:
        yield
    finally:
        lark.Lark = compiled
