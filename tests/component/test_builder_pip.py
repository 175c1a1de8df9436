"""dockerfiles/build/pip: what a lock's hashes let in."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hvdcloud.image.plan.context import dockerfiles
from tests.support.wheels import make_wheel


@pytest.fixture
def opt(tmp_path: Path) -> Path:
    """What the build stages have in /opt, below another folder."""
    opt = tmp_path / "opt"
    for folder in ("locks", "wheels", "tools/bin"):
        (opt / folder).mkdir(parents=True)
    (opt / "pip").write_text((dockerfiles() / "build/pip").read_text().replace("/opt/", f"{opt}/"))
    (opt / "tools/bin/python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (opt / "tools/bin/python").chmod(0o755)
    return opt


def install(opt: Path, lock: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (opt / "locks/some.txt").write_text(lock)
    command = ["sh", f"{opt}/pip", "install", "--no-index", "--no-deps", "--target", f"{opt}/installed"]
    return subprocess.run(
        [*command, *arguments, "-r", f"{opt}/locks/some.txt"],
        env={**os.environ, "PIP_CONFIG_FILE": os.devnull},
        capture_output=True,
        text=True,
        check=False,
    )


def pinned(*projects: str, digest: str = "0" * 64) -> str:
    return "".join(f"{project} \\\n    --hash=sha256:{digest}\n" for project in projects)


@pytest.mark.parametrize("pin", ["my-pack-age==1.0", "my-pack-age==1.0 ; python_full_version >= '3.10'"])
def test_a_local_wheel_is_installed_in_place_of_the_indexs_file(opt: Path, pin: str) -> None:
    make_wheel(opt / "wheels", project="My_Pack.age", content="")
    done = install(opt, pinned(pin))
    assert done.returncode == 0, done.stderr
    assert [path.name.lower() for path in (opt / "installed").glob("*.dist-info")] == ["my_pack.age-1.0.dist-info"]


def test_a_lock_without_hashes_is_refused(opt: Path, tmp_path: Path) -> None:
    make_wheel(tmp_path, project="mine", content="")
    refused = install(opt, "mine==1.0\n", "--find-links", str(tmp_path))
    assert refused.returncode != 0
    assert "Hashes are required in --require-hashes mode" in refused.stderr
    assert not (opt / "installed").exists()


def test_a_file_that_is_neither_the_locks_nor_the_users_is_refused(opt: Path, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, project="mine", content="")
    refused = install(opt, pinned("mine==1.0"), "--find-links", str(tmp_path))
    assert refused.returncode != 0
    assert "DO NOT MATCH THE HASHES" in refused.stderr
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    done = install(opt, pinned("mine==1.0", digest=digest), "--find-links", str(tmp_path))
    assert done.returncode == 0, done.stderr
