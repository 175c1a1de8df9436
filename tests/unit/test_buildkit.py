"""BuildKit through the docker command: what it is sent, and what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvdcloud.errors import ExitCode
from hvdcloud.image.build.buildkit import with_cache, with_cache_mounts
from hvdcloud.image.build.buildkit_output import PlainLog
from hvdcloud.image.engine_stream import BuildEvent
from hvdcloud.image.plan import context
from hvdcloud.image.plan.context import Entry
from tests.support.build_steps import build_step

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


def test_the_image_has_the_same_name_with_every_builder() -> None:
    small = build_step(Entry(path="dockerfiles/small.Dockerfile", content=b"FROM scratch\nRUN pip install x\n"))
    digest = small.context.digest()
    sent = with_cache(small)
    assert b"--mount=type=cache" in next(iter(sent.hashed)).content
    assert {entry.path for entry in sent.unhashed} == {"buildkit/pip", "buildkit/apt-get"}
    assert all(entry.executable for entry in sent.unhashed)
    assert small.context.digest() == digest


def test_a_users_own_dockerfile_is_not_touched(tmp_path: Path) -> None:
    file = tmp_path / "dockerfiles" / "small.Dockerfile"
    file.parent.mkdir()
    file.write_text("FROM x\nRUN pip install y\n")
    theirs = build_step(Entry(path="dockerfiles/small.Dockerfile", source=file))
    assert with_cache(theirs) is theirs.context


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
    plain = PlainLog(image="digits", pip_hint="fix it", progress=events.append)
    for line in log.splitlines():
        plain.read(line)
    return plain, events


def test_progress_counts_instructions_of_all_stages() -> None:
    _, events = read(LOG)
    assert events == [
        BuildEvent(kind="step", text="FROM docker.io/library/debian:bookworm-slim", step=1, steps=2),
        BuildEvent(kind="layer", text="56bf5dcd38ee: 10.49MB / 29.13MB 0.4s"),
        BuildEvent(kind="done", text="", step=1),
        BuildEvent(kind="step", text="RUN echo hi", step=2, steps=2),
        BuildEvent(kind="output", text="hi", step=2),
        BuildEvent(kind="output", text="red", step=2),
        BuildEvent(kind="step", text="RUN sleep 2", step=3, steps=14),
        BuildEvent(kind="output", text="second", step=3),
        BuildEvent(kind="done", text="", step=3),
        BuildEvent(kind="output", text="still here", step=2),
        BuildEvent(kind="done", text="", step=2),
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


def test_a_requirement_that_does_not_exist_is_reported_in_pips_words() -> None:
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
    assert error.hint == "fix it"


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


def test_a_dockerfile_that_is_none_is_reported_in_buildkits_words() -> None:
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
