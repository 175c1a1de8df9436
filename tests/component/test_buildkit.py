"""The docker command that builds with BuildKit, with a script in its place."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.errors import ImageError
from hvdcloud.image.build import buildkit
from hvdcloud.image.build.buildkit import BuildKit
from hvdcloud.image.engine_reports import ignore
from hvdcloud.image.plan.context import Entry, Step
from tests.support.build_steps import build_step
from tests.support.harness import until
from tests.support.small_image import packed


class Server:
    """An engine as docker-py's low-level client shows it."""

    def version(self) -> dict[str, Any]:
        return {"Components": [{"Name": "Engine", "Version": "28.2.2"}]}


Docker = Callable[..., Path]


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Docker:
    """Puts a docker command on PATH, the only one there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def install(version: str = "", *, buildx: bool = False, inside: bool = False, build: str = "") -> Path:
        file = folder / "docker"
        refused = "echo 'BuildKit is enabled but the buildx component is missing or broken.' >&2; exit 1"
        file.write_text(
            "#!/bin/sh\n"
            'case "$*" in\n'
            f"'buildx version') {'echo github.com/docker/buildx v0.13.1' if buildx else refused} ;;\n"
            f"'build --help') {'echo --progress string' if inside else refused} ;;\n"
            f"--version) echo '{version}' ;;\n"
            f"*) PATH=/usr/bin:/bin; {build} ;;\n"
            "esac\n"
        )
        file.chmod(0o755)
        return file

    return install


@pytest.mark.parametrize(
    ("buildx", "inside", "expected"),
    [
        (True, True, ("buildx", "build", "--builder", "default")),
        (True, False, ("buildx", "build", "--builder", "default")),
        (False, True, ("build",)),
    ],
    ids=["23", "plugin", "20.10"],
)
def test_buildx_builds_or_a_client_that_has_buildkit_in_itself(
    docker: Docker, buildx: bool, inside: bool, expected: tuple[str, ...]
) -> None:
    file = docker(buildx=buildx, inside=inside)
    found = buildkit.find(Server())
    assert found.command == (str(file), *expected)
    assert buildx or found.environment["DOCKER_BUILDKIT"] == "1"


def test_a_client_without_buildkit_is_told_what_to_install(docker: Docker) -> None:
    file = docker("Docker version 28.2.2, build e6534b4")
    with pytest.raises(ImageError) as raised:
        buildkit.find(Server())
    assert raised.value.message == f"{file} (Docker version 28.2.2, build e6534b4) has no buildx, which builds images"
    assert raised.value.hint.startswith("install docker-buildx, ")
    file.unlink()
    with pytest.raises(ImageError, match="no docker command on PATH") as raised:
        buildkit.find(Server())
    assert raised.value.hint.startswith("install docker-buildx, ")


def small_step(**more: Any) -> Step:
    return build_step(Entry(path="dockerfiles/small.Dockerfile", content=b"FROM scratch\n"), **more)


def builder(command: Path) -> BuildKit:
    return BuildKit((str(command), "build"), dict(os.environ))


def test_arguments_travel_in_the_environment_where_ps_does_not_show_them(
    docker: Docker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    monkeypatch.setenv("PIP_INDEX_URL", "https://someone:hunter2@index.example/simple")
    command = docker(build=f'echo "$@" > {out}; env >> {out}; cat > {out}.tar')
    built = small_step(target="last", arguments={"ROW": "a b"}, labels={"hvdcloud-image": "1"})
    builder(command).build(built, progress=ignore)
    arguments, _, environment = out.read_text().partition("\n")
    assert arguments == (
        "build --progress=plain --file dockerfiles/small.Dockerfile --tag hvdcloud/t:1 --target last"
        " --build-arg PIP_INDEX_URL --build-arg ROW --label hvdcloud-image=1 -"
    )
    assert {"PIP_INDEX_URL=https://someone:hunter2@index.example/simple", "ROW=a b"} <= set(environment.splitlines())
    assert Path(f"{out}.tar").read_bytes() == packed(built.context)


def test_ctrl_c_ends_the_command_and_whatever_it_started(docker: Docker, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    # As 20.10 with SIGINT ignored: nothing but SIGKILL ends it, nor its plugin.
    command = docker(build=f"trap '' INT; sleep 300 & echo $! > {pid}; wait; sleep 300")

    def interrupt() -> None:
        until(pid.exists, what="the command")
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        builder(command).build(small_step(), progress=ignore)
    plugin = Path("/proc") / pid.read_text().strip()
    until(lambda: not plugin.exists() or "Z" in (plugin / "stat").read_text(), what="the plugin's end")
