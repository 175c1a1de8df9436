"""What keeps a commit from being released: another tag, no notes, a wheel that lacks a file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.workflows import read_workflow
from tools.release_check import ReleaseError, check_contents, check_metadata, check_tag, notes_of, wheel_names

ROOT = Path(__file__).resolve().parents[2]
CHANGELOG = """# Changelog

## [Unreleased]

- soon

## [0.2.0] - 2026-12-01

### Added

- two

## [0.1.0] - 2026-11-30

- one

[0.1.0]: https://example.org/one
"""
METADATA = """Metadata-Version: 2.4
Name: hvdcloud
Version: 0.1.0
License-Expression: Apache-2.0
License-File: LICENSE
Requires-Python: >=3.10
Description-Content-Type: text/markdown

# hvdcloud

One command.
"""


def test_a_tag_is_that_of_the_version() -> None:
    check_tag("v0.1.0", "0.1.0")
    for tag in ("0.1.0", "v0.1.1", "v0.1.0rc1"):
        with pytest.raises(ReleaseError, match=re.escape(f"the tag {tag} is not v0.1.0")):
            check_tag(tag, "0.1.0")


@pytest.mark.parametrize(("version", "notes"), [("0.2.0", "### Added\n\n- two\n"), ("0.1.0", "- one\n")])
def test_the_notes_are_the_section_of_the_version(version: str, notes: str) -> None:
    assert notes_of(CHANGELOG, version) == notes


def test_a_version_without_notes_is_no_release() -> None:
    for changelog in (CHANGELOG, "## [0.3.0]\n\n## [0.1.0]\n\n- one\n"):
        with pytest.raises(ReleaseError, match=r"CHANGELOG.md has no section \[0.3.0\]"):
            notes_of(changelog, "0.3.0")


def test_every_python_that_is_promised_is_in_the_matrix() -> None:
    """Those of the classifiers, without which release-check would not try them."""
    promised = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    matrix = read_workflow("tests.yml")["jobs"]["unit"]["strategy"]["matrix"]["python"]
    assert promised == matrix


def test_what_pypi_shows_is_there() -> None:
    check_metadata(METADATA, "0.1.0")
    for line, said in {
        "License-Expression: Apache-2.0\n": "License-Expression is None, not Apache-2.0",
        "Requires-Python: >=3.10\n": "Requires-Python is None",
        "Description-Content-Type: text/markdown\n": "Description-Content-Type is None",
        "# hvdcloud\n": "the description is not README.md",
        "Name: hvdcloud\n": "not valid",
    }.items():
        with pytest.raises(ReleaseError, match=said):
            check_metadata(METADATA.replace(line, ""), "0.1.0")


def test_a_wheel_has_every_file_of_the_package_and_no_other() -> None:
    source = {
        "README.md": b"",
        "dockerfiles/build/pip": b"pip",
        "hvdcloud/__init__.py": b"",
        "hvdcloud/templates/torch/train.py": b"train",
        "terraform/apis.tf": b"apis",
        "terraform/tests/a.tftest.hcl": b"",
    }
    wheel = {
        "hvdcloud/__init__.py": b"",
        "hvdcloud/dockerfiles/build/pip": b"pip",
        "hvdcloud/setup/module/apis.tf": b"apis",
        "hvdcloud/templates/torch/train.py": b"train",
        "hvdcloud-0.1.0.dist-info/METADATA": b"",
    }
    check_contents(wheel, source)
    for name in wheel.keys() - {"hvdcloud-0.1.0.dist-info/METADATA"}:
        with pytest.raises(ReleaseError, match=f"lacks {name}"):
            check_contents({other: wheel[other] for other in wheel.keys() - {name}}, source)
        with pytest.raises(ReleaseError, match=f"another {name}"):
            check_contents(wheel | {name: b"changed"}, source)
    with pytest.raises(ReleaseError, match=r"has hvdcloud/new.py, which git has not"):
        check_contents(wheel | {"hvdcloud/new.py": b""}, source)


def test_terraforms_own_files_are_those_that_pyproject_names() -> None:
    files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "terraform").rglob("*")]
    written = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    named = dict(re.findall(r'(?m)^"(terraform/.+)" = "(.+)"$', written))
    assert {file: place for place, file in wheel_names(files).items()} == named


def test_only_what_was_installed_on_every_python_is_published() -> None:
    jobs = read_workflow("release.yml")["jobs"]
    assert (jobs["installed"]["needs"], jobs["publish"]["needs"], jobs["github"]["needs"]) == (
        "build", ["build", "installed"], "publish",
    )  # fmt: skip
    tested = read_workflow("tests.yml")["jobs"]["unit"]
    assert jobs["installed"]["strategy"]["matrix"] == tested["strategy"]["matrix"]
    # The version is refused where nothing can be published yet.
    (build,) = [step["run"] for step in jobs["build"]["steps"] if "release_check" in step.get("run", "")]
    assert '--tag "$GITHUB_REF_NAME"' in build
