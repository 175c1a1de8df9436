"""What the metadata on an image's disk says, and the SBOM made of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.image.publish import packages
from hvdcloud.image.publish.sbom import document, packages_of
from tests.support.sbom_contents import CONTENTS, DIGEST, OTHER, VENV, is_valid_cyclonedx


def sbom(**arguments: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(document(CONTENTS, **{"name": "gcr.io/lab/digits", **arguments}))
    return found


def metadata(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """One with packages of every kind, and things that only look like some."""
    site = tmp_path / "opt/venv/lib/python3.11/site-packages"
    metadata(site, "torch-2.13.0.dist-info/METADATA", "Name: torch\nVersion: 2.13.0\n\nName: not this\n")
    metadata(site, "setuptools/_vendor/zipp-3.19.2.dist-info/METADATA", "Name: zipp\r\nVersion: 3.19.2\r\n\r\nlong")
    metadata(site, "old.egg-info/PKG-INFO", "Name: old\nVersion: 1.0\n")
    metadata(tmp_path, "usr/lib/python3/dist-packages/debians-1.egg-info", "Name: debians\nVersion: 1\n")
    metadata(site, "half-removed-1.0.dist-info/RECORD", "")
    metadata(site, "torch/METADATA", "Name: wrong\n")
    metadata(tmp_path, "proc/1.dist-info/METADATA", "Name: wrong\n")
    return tmp_path


def test_every_package_on_the_disk_is_listed_vendored_ones_included(
    disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packages.main(str(disk))
    listed = json.loads(capsys.readouterr().out)
    assert list(listed) == sorted(listed)
    assert [(package.name, package.version) for package in packages_of(listed)] == [
        ("debians", "1"),
        ("old", "1.0"),
        ("torch", "2.13.0"),
        ("zipp", "3.19.2"),
    ]


def test_a_folder_that_cannot_be_read_is_an_error_and_not_an_empty_list(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        packages.main(str(tmp_path / "gone"))


def test_the_same_version_in_two_places_is_one_package_and_two_versions_are_two() -> None:
    found = list(
        packages_of(
            {
                f"{VENV}/typing_extensions-4.16.0.dist-info/METADATA": "Name: typing_extensions\nVersion: 4.16.0\n",
                f"{OTHER}/typing_extensions-4.16.0.dist-info/METADATA": "Name: typing-extensions\nVersion: 4.16.0\n",
                f"{OTHER}/typing_extensions-4.12.2.dist-info/METADATA": "Name: typing_extensions\nVersion: 4.12.2\n",
            }
        )
    )
    assert [(package.version, len(package.places)) for package in found] == [("4.12.2", 1), ("4.16.0", 2)]


def test_metadata_without_a_name_has_that_of_its_folder() -> None:
    (package,) = packages_of({f"{VENV}/odd-1.0.dist-info/METADATA": "Metadata-Version: 2.1\n"})
    assert (package.name, package.version) == ("odd", None)


@pytest.mark.parametrize(
    ("fields", "licenses"),
    [
        ("License-Expression: MIT OR Apache-2.0\nLicense: no\nClassifier: License :: OSI Approved :: MIT License", 1),
        ("License: Apache 2.0\nClassifier: License :: OSI Approved :: Apache Software License", ("Apache 2.0",)),
        ("License: UNKNOWN\nClassifier: License :: OSI Approved :: MIT License", ("MIT License",)),
        ("License: Copyright\n        some people\n\n", ()),
        (
            "License: Copyright\n  some people\nClassifier: License :: OSI Approved :: BSD License\n"
            "Classifier: License :: OSI Approved\nClassifier: Topic :: Software Development",
            ("BSD License",),
        ),
        ("Summary: none at all", ()),
    ],
)
def test_the_licence_is_the_most_exact_thing_that_the_metadata_says(fields: str, licenses: Any) -> None:
    (package,) = packages_of({f"{VENV}/p-1.dist-info/METADATA": f"Name: p\nVersion: 1\n{fields}\n"})
    assert package.licenses == (("MIT OR Apache-2.0",) if licenses == 1 else licenses)


@pytest.mark.parametrize("digest", [DIGEST, None])
def test_the_sbom_is_valid_cyclonedx(digest: str | None) -> None:
    text = document(CONTENTS, name="gcr.io/lab/digits", digest=digest).decode()
    assert is_valid_cyclonedx(text)
    assert not is_valid_cyclonedx(text.replace('"library"', '"nonsense"'))


def test_the_sbom_is_about_the_image_by_its_digest() -> None:
    pushed, local = sbom(digest=DIGEST)["metadata"], sbom(name="hvdcloud/project")["metadata"]
    image = pushed["component"]
    assert (image["type"], image["name"], image["version"]) == ("container", "gcr.io/lab/digits", DIGEST)
    assert image["purl"] == f"pkg:oci/digits@{DIGEST}?repository_url=gcr.io/lab/digits"
    assert image["properties"] == [{"name": "hvdcloud:image-id", "value": CONTENTS.image_id}]
    assert (local["component"]["version"], "purl" in local["component"]) == (CONTENTS.image_id, False)
    assert pushed["timestamp"] == "2026-11-21T03:04:05+00:00"


def test_each_package_has_its_purl_its_licence_and_its_places() -> None:
    found = sbom(digest=DIGEST)
    by_name = {component["name"]: component for component in found["components"]}
    assert by_name["torch"]["purl"] == "pkg:pypi/torch@2.13.0%2Bcpu"
    assert by_name["torch"]["licenses"] == [{"expression": "Apache-2.0 AND BSD-3-Clause"}]
    assert by_name["Jinja2"]["purl"] == "pkg:pypi/jinja2@3.1.6"
    assert by_name["Jinja2"]["licenses"] == [{"license": {"name": "BSD License"}}]
    assert len(by_name["Jinja2"]["evidence"]["occurrences"]) == 2
    assert "version" not in by_name["nameless"]
    assert [entry["license"]["name"] for entry in by_name["two"]["licenses"]] == ["BSD License", "MIT License"]
    (needs,) = [entry["dependsOn"] for entry in found["dependencies"] if entry["ref"] == "image"]
    assert sorted(needs) == sorted(component["bom-ref"] for component in found["components"])
