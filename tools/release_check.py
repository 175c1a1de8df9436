"""All of a release but its publishing: `make release-check`.

What git has committed is built twice, and has to be the same bytes; the wheel has to hold every file of the package,
and its commands have to work in a virtual environment of their own. What it makes, .github/workflows/release.yml
publishes.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
AGAIN = "then make release-check again"
_PLACES = {"hvdcloud/": "hvdcloud/", "dockerfiles/": "hvdcloud/dockerfiles/", "terraform/": "hvdcloud/setup/module/"}


class ReleaseError(Exception):
    """What keeps a commit from being released, with what to do about it."""


def check_tag(tag: str, version: str) -> None:
    """Raises ReleaseError: a tag is not that of the version in hvdcloud/__init__.py."""
    if tag != f"v{version}":
        raise ReleaseError(
            f"the tag {tag} is not v{version}, the version in hvdcloud/__init__.py\n"
            f"→ git push --delete origin {tag}, then git tag v{version}"
        )


def notes_of(changelog: str, version: str) -> str:
    """The section of a version in CHANGELOG.md, without its heading.

    Raises ReleaseError: there is none, or it is empty.
    """
    found = re.search(rf"(?ms)^## \[{re.escape(version)}\][^\n]*\n(.*?)(?=^## \[|^\[[^]\n]+\]: |\Z)", changelog)
    if found is None or not found[1].strip():
        raise ReleaseError(f"CHANGELOG.md has no section [{version}]\n→ rename [Unreleased] to it, {AGAIN}")
    return found[1].strip() + "\n"


def check_metadata(text: str, version: str) -> None:
    """Raises ReleaseError: a wheel's METADATA lacks something that PyPI shows or pip reads."""
    from packaging.errors import ExceptionGroup
    from packaging.metadata import Metadata

    try:
        metadata = Metadata.from_email(text, validate=True)
    except ExceptionGroup as group:
        said = "; ".join(str(each) for each in group.exceptions)
        raise ReleaseError(f"the wheel's METADATA is not valid: {said}\n→ correct pyproject.toml, {AGAIN}") from group
    wanted = {
        "Name": (metadata.name, "hvdcloud"),
        "Version": (str(metadata.version), version),
        "License-Expression": (metadata.license_expression, "Apache-2.0"),
        "License-File": (metadata.license_files, ["LICENSE"]),
        "Description-Content-Type": (metadata.description_content_type, "text/markdown"),
        "Requires-Python": (str(metadata.requires_python), ">=3.10"),
    }
    wrong = [f"{name} is {found}, not {right}" for name, (found, right) in wanted.items() if found != right]
    if not (metadata.description or "").startswith("# hvdcloud"):
        wrong.append("the description is not README.md")
    if wrong:
        raise ReleaseError(f"the wheel's METADATA: {'; '.join(wrong)}\n→ correct pyproject.toml, {AGAIN}")


def wheel_names(files: Sequence[str]) -> dict[str, str]:
    """Where a wheel has what the repository has: `hvdcloud/setup/module/apis.tf` → `terraform/apis.tf`."""
    found = {}
    for file in files:
        for folder, place in _PLACES.items():
            if file.startswith(folder) and (folder != "terraform/" or file.endswith(".tf")):
                found[place + file.removeprefix(folder)] = file
    return found


def check_contents(wheel: Mapping[str, bytes], source: Mapping[str, bytes]) -> None:
    """Raises ReleaseError: a wheel lacks a file of the package, has another, or has one with other bytes."""
    expected = wheel_names(sorted(source))
    there = {name for name in wheel if ".dist-info/" not in name}
    wrong = [f"lacks {name}" for name in sorted(expected.keys() - there)]
    wrong += [f"has {name}, which git has not" for name in sorted(there - expected.keys())]
    wrong += [
        f"has another {name}" for name in sorted(expected.keys() & there) if wheel[name] != source[expected[name]]
    ]
    if wrong:
        raise ReleaseError(
            f"the wheel {'; '.join(wrong[:10])}\n→ correct [tool.hatch.build] in pyproject.toml, {AGAIN}"
        )


def build(target: Path) -> tuple[Path, Path]:
    """Builds the source package and the wheel of git's HEAD, checks them, and puts them into a folder.

    Raises ReleaseError: two builds differ, or something is missing.
    """
    commit = _git("rev-parse", "HEAD").decode().strip()
    epoch = _git("log", "-1", "--format=%ct").decode().strip()
    archive = _git("archive", "--format=tar", commit)
    with tempfile.TemporaryDirectory(prefix="hvdcloud-release-") as folder:
        first, second, unpacked = (Path(folder, name) for name in ("first", "second", "unpacked"))
        _extract(archive, first)
        # As another machine may have it: other times, other modes of files.
        _extract(archive, second, mask=0o077)
        made = _built(first, epoch=epoch)
        _compare(made, _built(second, epoch=epoch), "a second build of the same commit")
        sdist, wheel = made
        _extract(sdist.read_bytes(), unpacked)
        (inner,) = unpacked.iterdir()
        _compare([wheel], _built(inner, epoch=epoch, kinds=["wheel"]), "the wheel built from the source package")
        with zipfile.ZipFile(wheel) as file:
            content = {name: file.read(name) for name in file.namelist()}
        version = wheel.name.split("-")[1]
        check_contents(content, {path.relative_to(first).as_posix(): path.read_bytes() for path in _files(first)})
        check_metadata(content[f"hvdcloud-{version}.dist-info/METADATA"].decode(), version)
        target.mkdir(parents=True, exist_ok=True)
        for old in target.glob("hvdcloud-*"):
            old.unlink()
        # /tmp may be another file system.
        return Path(shutil.copy(sdist, target)), Path(shutil.copy(wheel, target))


def pythons(pyproject: str) -> dict[str, str | None]:
    """An interpreter for each version in pyproject.toml's classifiers: this one, or `pythonX.Y` on PATH; None: there is
    none, or it can make no virtual environment."""
    found: dict[str, str | None] = {}
    for version in re.findall(r'"Programming Language :: Python :: (3\.\d+)"', pyproject):
        if version == f"3.{sys.version_info.minor}":
            found[version] = sys.executable
            continue
        # pyenv has a command for each version that is installed, which fails where it is not chosen.
        asked = [shutil.which(f"python{version}") or "false", "-c", "import ensurepip, venv"]
        works = subprocess.run(asked, capture_output=True, check=False).returncode == 0
        found[version] = asked[0] if works else None
    return found


def check_installed(wheel: Path, python: str = sys.executable) -> None:
    """Installs a wheel as a user would, by this or another Python, and calls three commands.

    Raises ReleaseError: one of them does not do what it says.
    """
    version = wheel.name.split("-")[1]
    with tempfile.TemporaryDirectory(prefix="hvdcloud-release-") as folder:
        binaries, project = Path(folder, "venv", "bin"), Path(folder, "digits")
        # PYTHONPATH would bring another hvdcloud.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environment |= {"HVDCLOUD_STATE_DIR": f"{folder}/state", "PATH": f"{binaries}:{os.environ['PATH']}"}

        def call(*command: str | Path, cwd: Path = Path(folder)) -> str:
            return _run(*command, cwd=cwd, environment=environment)

        call(python, "-m", "venv", Path(folder, "venv"))
        call(binaries / "python", "-m", "pip", "install", "--quiet", wheel.resolve())
        call(binaries / "python", "-m", "pip", "check")
        said = call(binaries / "hvdcloud", "--version").strip()
        if said != f"hvdcloud {version}":
            raise ReleaseError(f"{wheel.name} says that it is {said}\n→ build it again: make release-check")
        if "hvdcloud launch" not in call(binaries / "hvdcloud", "launch", "--help"):
            raise ReleaseError(f"{wheel.name}: launch --help shows no use of launch\n→ correct hvdcloud/cli, {AGAIN}")
        call(binaries / "hvdcloud", "init", "digits")
        for name in ("hvdcloud.yaml", "train.py", "requirements.txt"):
            if not (project / name).is_file():
                raise ReleaseError(f"{wheel.name}: init wrote no {name}\n→ correct hvdcloud/templates, {AGAIN}")
        checks = json.loads(call(binaries / "hvdcloud", "doctor", "--json", cwd=project))["result"]["checks"]
        _say(f"{wheel.name} works with {python}: launch --help, init, and doctor with {len(checks)} checks")


def _git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout


def _extract(archive: bytes, target: Path, *, mask: int = 0o022) -> None:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        # Without filters in Debian 12's Python 3.11.2.
        opened.extraction_filter = getattr(tarfile, "data_filter", None)
        opened.extractall(target)
    for path in _files(target):
        path.chmod(path.stat().st_mode & ~mask)


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _built(source: Path, *, epoch: str, kinds: Sequence[str] = ("sdist", "wheel")) -> list[Path]:
    """What hatchling makes of a folder, in the order of `kinds`."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
    targets = [word for kind in kinds for word in ("-t", kind)]
    _run(sys.executable, "-m", "hatchling", "build", "-d", "made", *targets, cwd=source, environment=environment)
    ends = {"sdist": "*.tar.gz", "wheel": "*.whl"}
    return [next((source / "made").glob(ends[kind])) for kind in kinds]


def _compare(made: Sequence[Path], again: Sequence[Path], what: str) -> None:
    for one, other in zip(made, again, strict=True):
        if (one.name, one.read_bytes()) != (other.name, other.read_bytes()):
            raise ReleaseError(f"{what} is not the same {one.name}\n→ diffoscope {one} {other} says what differs")


def _run(*command: str | Path, cwd: Path, environment: Mapping[str, str]) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        said = f"{done.stdout[-3000:]}{done.stderr[-3000:]}".strip()
        raise ReleaseError(f"{' '.join(words)} ended with {done.returncode}:\n{said}\n→ correct that, {AGAIN}")
    return done.stdout


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Builds and checks, or only checks a wheel that exists; 1: it may not be released."""
    parser = argparse.ArgumentParser(description="All of a release but its publishing.")
    parser.add_argument("--dist", type=Path, default=Path("dist"), help="the folder for both packages")
    parser.add_argument(
        "--tag", help="refuse another version than this tag's, and one without a section in CHANGELOG.md"
    )
    parser.add_argument("--notes", type=Path, help="write the version's section of CHANGELOG.md to this file")
    parser.add_argument("--installed", type=Path, metavar="WHEEL", help="only check this wheel, with this Python")
    given = parser.parse_args()
    try:
        if given.installed:
            check_installed(given.installed)
            return 0
        packages = build(given.dist)
        version = packages[1].name.split("-")[1]
        if given.tag:
            check_tag(given.tag, version)
        try:
            notes = notes_of((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version)
        except ReleaseError as error:
            if given.tag:
                raise
            _say(f"a tag v{version} would be refused: {error}")
        else:
            if given.notes:
                given.notes.write_text(notes, encoding="utf-8")
        for package in packages:
            _say(f"{package}: {package.stat().st_size // 1024} KiB, the same in two builds")
        interpreters = pythons((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        for python in filter(None, interpreters.values()):
            check_installed(packages[1], python)
        if missing := [version for version, python in interpreters.items() if python is None]:
            _say(f"not tried with Python {', '.join(missing)}, not on PATH; .github/workflows/release.yml does that")
    except ReleaseError as error:
        sys.stderr.write(f"release-check: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
