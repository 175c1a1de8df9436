"""What `make setup` installs: exact versions and hashes that fit pyproject.toml, from any index."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hvdcloud.image.plan.versions import ROWS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
LOCKS, OF_IMAGES = ROOT / "tools/locks", ROOT / "dockerfiles/locks"
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
GROUPS: dict[str, list[str]] = PYPROJECT["dependency-groups"]
# tf, of the group terraform, needs 3.11.
SYSTEMS = [
    (group, python, system)
    for group in GROUPS
    for python in ("3.10", "3.11", "3.12", "3.13", "3.14")
    for system in ("linux", "darwin")
    if (group, python) != ("terraform", "3.10")
]


def pins(file: Path) -> list[tuple[Requirement, list[str]]]:
    """A lock's requirements, each with its files' hashes."""
    text = "\n".join(line for line in file.read_text().splitlines() if "#" not in line)
    entries = [entry.split() for entry in re.split(r"(?<!\\)\n", text) if entry]
    found = []
    for words in entries:
        hashes = [word for word in words if word.startswith("--hash=sha256:")]
        found.append((Requirement(" ".join(word for word in words if word not in {*hashes, "\\"})), hashes))
    return found


@pytest.mark.parametrize("file", [*LOCKS.iterdir(), *OF_IMAGES.iterdir()], ids=lambda file: file.name)
def test_a_lock_pins_every_project_by_hash_and_names_no_index(file: Path) -> None:
    assert (pinned := pins(file))
    assert [str(pin) for pin, hashes in pinned if not re.fullmatch(r"==[^*,]+", str(pin.specifier)) or not hashes] == []
    assert [str(pin) for pin, _ in pinned if pin.url] == []
    text = re.sub(r"(?m)^#.*$", "", file.read_text())
    assert "://" not in text
    assert set(re.findall(r"(?:^|\s)(-[-\w]*)", text)) == {"--hash"}


def test_what_no_lock_has_is_torch_for_cpus_and_the_readme_says_why() -> None:
    locked = {canonicalize_name(pin.name) for file in OF_IMAGES.iterdir() for pin, _ in pins(file)}
    of_no_lock = {row.label for row in ROWS if row.index}
    assert {row.label for row in ROWS if row.project not in locked or row.index} == of_no_lock == {"torch-2.13.0-cpu"}
    said = " ".join((ROOT / "dockerfiles/README.md").read_text().split())
    assert "torch for CPUs alone has none: it is not PyPI's, but its own index's or the user's" in said


@pytest.mark.parametrize(("group", "python", "system"), SYSTEMS)
def test_a_lock_has_what_pyproject_asks_for_once_for_every_python(group: str, python: str, system: str) -> None:
    environment = {
        **{name: str(value) for name, value in default_environment().items()},
        "python_version": python,
        "python_full_version": f"{python}.1",
        "sys_platform": system,
    }
    installed: dict[str, str] = {}
    for pin, _ in pins(LOCKS / f"{group}.txt"):
        if pin.marker is None or pin.marker.evaluate(environment):
            assert canonicalize_name(pin.name) not in installed
            installed[canonicalize_name(pin.name)] = str(pin.specifier).removeprefix("==")
    asked = [Requirement(text) for text in GROUPS[group]]
    if group == "dev":
        asked += [Requirement(text) for text in PYPROJECT["project"]["dependencies"]]
    missing = [
        str(each)
        for each in asked
        if (each.marker is None or each.marker.evaluate(environment))
        and not each.specifier.contains(installed.get(canonicalize_name(each.name), "0"))
    ]
    assert missing == [], "run: make lock"
