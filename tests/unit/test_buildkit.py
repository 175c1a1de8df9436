"""BuildKit through the docker command: whether it is there, what it is sent, and what it says."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hvdcloud import engine
from hvdcloud.errors import ExitCode, ImageError, UsageError
from hvdcloud.image.build import buildkit
from hvdcloud.image.build.buildkit import BuildKitBuilder, find_builder, with_cache, with_cache_mounts
from hvdcloud.image.build.buildkit_output import PlainLog
from hvdcloud.image.engine_stream import BuildEvent, ignore
from hvdcloud.image.plan import context
from hvdcloud.image.plan.context import Context, Entry
from hvdcloud.image.plan.steps import Step
from tests.support.harness import until

# --- whether it is there -------------------------------------------------------------------------------------------


class Server:
    """An engine as docker-py's low-level client shows it."""

    def __init__(self, *, component: str = "Engine", api_version: str = "1.41") -> None:
        self._version = {
            "Version": "20.10.24",
            "ApiVersion": api_version,
            "Os": "linux",
            "Components": [{"Name": component, "Version": "20.10.24"}],
        }
        self.images = {"hvdcloud/t:1": "sha256:1234"}

    def version(self) -> dict[str, Any]:
        return self._version

    def inspect_image(self, reference: str) -> dict[str, Any]:
        return {"Id": self.images[reference]}


Docker = Callable[..., Path]


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Docker:
    """Puts a docker command on PATH, the only one there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv(buildkit.BUILDER_VARIABLE, raising=False)

    def install(version: str, *, buildx: bool = False, build: str = "") -> Path:
        file = folder / "docker"
        refused = "echo \"docker: 'buildx' is not a docker command.\" >&2; exit 1"
        file.write_text(
            "#!/bin/sh\n"
            'case "$*" in\n'
            f"'buildx version') {'echo github.com/docker/buildx v0.13.1' if buildx else refused} ;;\n"
            f"--version) echo '{version}' ;;\n"
            f"*) PATH=/usr/bin:/bin; {build} ;;\n"
            "esac\n"
        )
        file.chmod(0o755)
        return file

    return install


@pytest.mark.parametrize(
    ("version", "buildx", "expected"),
    [
        ("Docker version 28.2.2, build e6534b4", True, ["buildx", "build", "--builder", "default", "--load"]),
        ("Docker version 28.2.2, build e6534b4", False, None),
        ("Docker version 23.0.0, build e92dd87", False, None),
        ("Docker version 20.10.24+dfsg1, build 297e128", False, ["build"]),
        ("Docker version 20.10.24+dfsg1, build 297e128", True, ["buildx", "build", "--builder", "default", "--load"]),
        ("Docker version 19.03.15, build 99e3ed8", False, None),
        ("podman version 4.3.1", False, None),
        ("", False, None),
    ],
)
def test_a_docker_command_has_buildkit_in_itself_until_23_and_then_in_its_plugin(
    docker: Docker, version: str, buildx: bool, expected: list[str] | None
) -> None:
    file = docker(version, buildx=buildx)
    found = find_builder(Server())
    assert (found and list(found._command)) == (expected and [str(file), *expected])
    if found and not buildx:
        assert found._environment["DOCKER_BUILDKIT"] == "1"


@pytest.mark.parametrize("server", [Server(component="Podman Engine"), Server(api_version="1.40")])
def test_an_engine_without_buildkit_is_recognised(docker: Docker, server: Server) -> None:
    docker("Docker version 28.2.2, build e6534b4", buildx=True)
    assert find_builder(server) is None


def test_without_a_docker_command_the_classic_builder_builds(docker: Docker) -> None:
    assert find_builder(Server()) is None


def test_the_user_has_the_last_word_on_the_builder(docker: Docker, monkeypatch: pytest.MonkeyPatch) -> None:
    docker("Docker version 28.2.2, build e6534b4", buildx=True)
    monkeypatch.setenv("HVDCLOUD_BUILDER", "classic")
    assert find_builder(Server()) is None
    monkeypatch.setenv("HVDCLOUD_BUILDER", "buildkit")
    assert find_builder(Server()) is not None
    file = docker("Docker version 28.2.2, build e6534b4")
    with pytest.raises(UsageError, match=rf"no BuildKit: {file} \(Docker version 28.2.2, .*\) has no buildx") as raised:
        find_builder(Server())
    assert "docker-buildx-plugin" in raised.value.hint
    monkeypatch.setenv("HVDCLOUD_BUILDER", "buildah")
    with pytest.raises(UsageError, match="HVDCLOUD_BUILDER=buildah is no builder"):
        find_builder(Server())


def test_the_command_talks_to_the_engine_that_docker_py_talks_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONTEXT", "elsewhere")
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:2375")
    environment = engine.command_environment()
    assert (environment["DOCKER_HOST"], environment.get("DOCKER_CONTEXT")) == ("tcp://127.0.0.1:2375", None)
    monkeypatch.setenv("DOCKER_HOST", "")
    monkeypatch.setenv("DOCKER_CONFIG", "/nowhere")
    environment = engine.command_environment()
    assert (environment.get("DOCKER_HOST"), environment["DOCKER_CONTEXT"]) == (None, "default")


# --- what it is sent -----------------------------------------------------------------------------------------------

CACHED = (
    "RUN --mount=type=cache,target=/mnt,id=hvdcloud-downloads --mount=type=bind,source=buildkit,target=/media "
    'export PATH="/media:$PATH"; '
)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("RUN apt-get update \\\n    && rm -rf /x\n", CACHED + "apt-get update \\\n    && rm -rf /x\n"),
        ("RUN set -eu; \\\n    # why\n    pip install x\n", CACHED + "set -eu; \\\n    # why\n    pip install x\n"),
        ("run --network=none pip install x", CACHED.replace("RUN", "run --network=none") + "pip install x"),
        ("RUN /opt/build/framework.sh a\n", CACHED + "/opt/build/framework.sh a\n"),
        # The first one's last line ends it, comment or not in between.
        ("RUN a \\\n# pip\n\n  b\nRUN pip c\n", "RUN a \\\n# pip\n\n  b\n" + CACHED + "pip c\n"),
        ("RUN echo pipe\n", "RUN echo pipe\n"),
        ('RUN ["pip", "install"]\n', 'RUN ["pip", "install"]\n'),
        ("COPY build/pip /bin/\n# RUN pip\n", "COPY build/pip /bin/\n# RUN pip\n"),
    ],
)
def test_a_run_that_downloads_gets_a_cache_and_nothing_else_changes(given: str, expected: str) -> None:
    assert with_cache_mounts(given) == expected


def test_in_our_own_dockerfiles_every_download_is_cached() -> None:
    for file in context.dockerfiles().glob("*.Dockerfile"):
        rendered = with_cache_mounts(file.read_text())
        instructions = rendered.replace("\\\n", "").splitlines()
        runs = [line for line in instructions if line.startswith("RUN ")]
        assert [run for run in runs if ("apt-get" in run or " pip " in run) and "type=cache" not in run] == []
        added = rendered.replace(CACHED, "RUN ")
        assert added == file.read_text()


def step(*entries: Entry, dockerfile: str = "dockerfiles/small.Dockerfile", **more: Any) -> Step:
    return Step(
        reference="hvdcloud/t:1", what="a small image", context=Context(hashed=entries), dockerfile=dockerfile, **more
    )


def test_the_image_has_the_same_name_whoever_builds_it() -> None:
    small = step(Entry(path="dockerfiles/small.Dockerfile", content=b"FROM scratch\nRUN pip install x\n"))
    digest = small.context.digest()
    sent = with_cache(small)
    assert b"--mount=type=cache" in next(iter(sent.hashed)).content  # type: ignore[operator]
    assert {entry.path for entry in sent.unhashed} == {"buildkit/pip", "buildkit/apt-get"}
    assert all(entry.executable for entry in sent.unhashed)
    assert small.context.digest() == digest


def test_a_users_own_dockerfile_is_not_touched(tmp_path: Path) -> None:
    file = tmp_path / "dockerfiles" / "small.Dockerfile"
    file.parent.mkdir()
    file.write_text("FROM x\nRUN pip install y\n")
    theirs = step(Entry(path="dockerfiles/small.Dockerfile", source=file))
    assert with_cache(theirs) is theirs.context


def small_step(**more: Any) -> Step:
    return step(Entry(path="dockerfiles/small.Dockerfile", content=b"FROM scratch\n"), **more)


def builder(command: Path, server: Server | None = None) -> BuildKitBuilder:
    return BuildKitBuilder(server or Server(), command=[str(command), "build"], environment=dict(os.environ))


def test_arguments_travel_in_the_environment_where_ps_does_not_show_them(
    docker: Docker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    monkeypatch.setenv("PIP_INDEX_URL", "https://someone:hunter2@index.example/simple")
    command = docker("", build=f'echo "$@" > {out}; env >> {out}; cat > {out}.tar')
    built = small_step(target="last", arguments={"ROW": "a b"}, labels={"hvdcloud-image": "1"})
    assert builder(command).build(built, progress=ignore) == "sha256:1234"
    arguments, _, environment = out.read_text().partition("\n")
    assert arguments == (
        "build --progress=plain --file dockerfiles/small.Dockerfile --tag hvdcloud/t:1 --target last"
        " --build-arg PIP_INDEX_URL --build-arg ROW --label hvdcloud-image=1 -"
    )
    assert {"PIP_INDEX_URL=https://someone:hunter2@index.example/simple", "ROW=a b"} <= set(environment.splitlines())
    assert Path(f"{out}.tar").read_bytes() == b"".join(with_cache(built).stream())


def test_a_command_that_does_not_read_the_context_says_why_it_failed(docker: Docker) -> None:
    command = docker("", build="exec 0<&-; echo 'failed to dial gRPC: cannot connect to the Docker daemon'; exit 1")
    large = step(
        Entry(path="dockerfiles/small.Dockerfile", content=b"FROM scratch\n"), Entry(path="x", content=bytes(1 << 22))
    )
    with pytest.raises(ImageError, match="cannot connect to the Docker daemon") as raised:
        builder(command).build(large, progress=ignore)
    assert raised.value.code == ExitCode.IMAGE


def test_a_file_that_becomes_shorter_while_it_is_sent_is_named(docker: Docker) -> None:
    command = docker("", build="cat > /dev/null; echo 'unexpected EOF'; exit 1")
    # A file of sysfs claims a page's size, whatever it holds.
    file = Path("/sys/kernel/uevent_seqnum")
    short = step(
        Entry(path="dockerfiles/small.Dockerfile", content=b"FROM scratch\n"), Entry(path="wheels/x.whl", source=file)
    )
    with pytest.raises(UsageError, match=f"{file} became shorter"):
        builder(command).build(short, progress=ignore)


def test_ctrl_c_ends_the_command_and_whatever_it_started(docker: Docker, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    # As 20.10 with SIGINT ignored: nothing but SIGKILL ends it, nor its plugin.
    command = docker("", build=f"trap '' INT; sleep 300 & echo $! > {pid}; wait; sleep 300")
    threading.Thread(
        target=lambda: (until(pid.exists, seconds=10, what="the command"), os.kill(os.getpid(), signal.SIGINT)),
        daemon=True,
    ).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        builder(command).build(small_step(), progress=ignore)
    assert time.monotonic() - began < buildkit._CANCEL_SECONDS + 5
    plugin = Path("/proc") / pid.read_text().strip()
    until(lambda: not plugin.exists() or "Z" in (plugin / "stat").read_text(), seconds=5, what="the plugin's end")


def test_a_command_that_falls_silent_is_given_up(docker: Docker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buildkit, "SILENCE_SECONDS", 0.2)
    with pytest.raises(ImageError, match=r"a small image has said nothing for 0\.2 s"):
        builder(docker("", build="exec sleep 300")).build(small_step(), progress=ignore)


# --- what it says --------------------------------------------------------------------------------------------------

# docker 20.10.24, two stages side by side.
LOG = """\
#1 [internal] load remote build context
#1 sha256:4b682a15d29ea23bbb2ba4a070adc76cd6ad3d96da9b6e14149be4937361f74b
#1 DONE 0.0s

#2 copy /context /
#2 DONE 0.1s

#3 [internal] load metadata for docker.io/library/debian:bookworm-slim
#3 DONE 0.0s

#4 [tools 1/2] FROM docker.io/library/debian:bookworm-slim
#4 sha256:56bf5dcd38ee2f60f646b15b1b91e40b5e8375a457572f890edbccbd17190813
#4 sha256:56bf5dcd38ee2f60f646b15b1b91e40b5e8375a457572f890edbccbd17190813 10.49MB / 29.13MB 0.4s
#4 CACHED

#5 [tools 2/2] RUN echo hi
#5 0.213 hi
#5 0.214
#5 0.288 \x1b[91mred\x1b[0m
#5 ...

#6 [second  1/12] RUN sleep 2
#6 0.324 second
#6 DONE 2.4s

#5 [tools 2/2] RUN echo hi
#5 0.9 still here
#5 DONE 2.5s

#12 exporting to image
#12 exporting layers 0.0s done
#12 writing image sha256:833668a6690f62965964df61a86b52613ddfd18246bf62355bb8d257f106ceba done
#12 DONE 0.0s
"""


def read(log: str) -> tuple[PlainLog, list[BuildEvent]]:
    events: list[BuildEvent] = []
    plain = PlainLog(image="digits", pip_hint="mend it", progress=events.append)
    for line in log.splitlines():
        plain.read(line)
    return plain, events


def test_progress_counts_instructions_of_all_stages() -> None:
    _, events = read(LOG)
    assert events == [
        BuildEvent(kind="step", text="FROM docker.io/library/debian:bookworm-slim", step=1, steps=2),
        BuildEvent(kind="layer", text="56bf5dcd38ee: 10.49MB / 29.13MB 0.4s"),
        BuildEvent(kind="step", text="RUN echo hi", step=2, steps=2),
        BuildEvent(kind="output", text="hi"),
        BuildEvent(kind="output", text="red"),
        BuildEvent(kind="step", text="RUN sleep 2", step=3, steps=14),
        BuildEvent(kind="output", text="second"),
        BuildEvent(kind="output", text="still here"),
    ]


def test_the_users_step_is_shown_without_our_mounts() -> None:
    _, events = read(f"#5 [2/7] {CACHED.replace('$PATH', '/opt/venv/bin:/usr/bin')}pip install x\n")
    assert [event.text for event in events] == ["RUN pip install x"]


@pytest.mark.parametrize(
    "last",
    [
        # docker 20.10.24
        "#11 ERROR: executor failed running [/bin/sh -c make]: exit code: 3\n"
        "------\n > [stage-2 4/4] RUN make:\n------\n"
        "executor failed running [/bin/sh -c make]: exit code: 3\n",
        # buildx 0.13.1
        '#11 ERROR: process "/bin/sh -c make" did not complete successfully: exit code: 3\n'
        "------\n > [stage-2 4/4] RUN make:\n0.273 cc -c b.c\n------\n"
        'ERROR: failed to solve: process "/bin/sh -c make" did not complete successfully: exit code: 3\n',
    ],
)
def test_a_failing_step_is_named_with_its_own_last_lines(last: str) -> None:
    work = "#10 [tools 2/2] RUN other\n#11 [stage-2 4/4] RUN make\n#10 0.1 noise\n"
    output = "".join(f"#11 0.{number} line {number}\n" for number in range(100))
    plain, _ = read(work + output + "#10 0.2 more noise\n#10 CANCELED\n" + last)
    error = plain.error()
    assert error.code == ExitCode.IMAGE
    assert error.message == (
        "digits was not built: at step 4/4 of stage-2: RUN make: the command ended with exit code 3"
    )
    assert error.details.splitlines() == [f"line {number}" for number in range(80, 100)]


def test_a_requirement_that_does_not_exist_is_told_in_pips_words() -> None:
    plain, _ = read(
        "#9 [requirements 6/6] RUN pip install\n"
        "#9 1.2 \x1b[91mERROR: Could not find a version that satisfies the requirement nosuch==9\n"
        "#9 1.3 ERROR: No matching distribution found for nosuch==9\x1b[0m\n"
        '#9 ERROR: process "/bin/sh -c pip install" did not complete successfully: exit code: 1\n'
    )
    error = plain.error()
    assert (
        error.message == "digits was not built: pip: Could not find a version that satisfies the requirement nosuch==9"
    )
    assert error.hint == "mend it"


@pytest.mark.parametrize(
    "log",
    [
        "#9 [2/2] COPY . /\n#9 ERROR: failed to copy files: write /x: no space left on device\n",
        '#9 [2/2] RUN x\n#9 0.1 write /x: No space left on device\n#9 ERROR: process "x" did not: exit code: 1\n',
        "#12 exporting to image\n#12 ERROR: mount callback failed: no space left on device\n",
        "#1 [internal] load remote build context\nfailed to solve: write /var/lib/docker/x: no space left on device\n",
    ],
)
def test_a_full_disk_is_called_one(log: str) -> None:
    error = read(log)[0].error()
    assert "the disk of the Docker engine is full" in error.message
    assert "docker system df" in error.hint


def test_a_base_image_that_cannot_be_pulled_is_told_apart() -> None:
    why = 'failed to do request: Head "https://example.invalid/v2/x/manifests/1": dial tcp: no such host'
    plain, _ = read(
        f"#3 [internal] load metadata for example.invalid/x:1\n#3 ERROR: {why}\n"
        "------\n > [internal] load metadata for example.invalid/x:1:\n------\n"
        f"ERROR: failed to solve: rpc error: code = Unknown desc = {why}\n"
    )
    error = plain.error()
    assert "can't be pulled, at its start: FROM example.invalid/x:1: failed to do request" in error.message
    assert "make base-image" in error.hint


def test_a_dockerfile_that_is_none_is_told_in_buildkits_words() -> None:
    plain, _ = read(
        "#2 copy /context /\n#2 CACHED\nERROR: failed to solve: rpc error: code = Unknown desc = "
        "failed to solve with frontend dockerfile.v0: failed to create LLB definition: "
        "dockerfile parse error line 2: unknown instruction: RUNN\n"
    )
    assert plain.error().message == (
        "digits was not built: before its first step: dockerfile parse error line 2: unknown instruction: RUNN"
    )


def test_a_command_that_ends_without_a_word_is_an_error_all_the_same() -> None:
    assert "it does not say why" in read("")[0].error().message
