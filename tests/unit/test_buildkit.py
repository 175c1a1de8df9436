"""What the docker command prints while BuildKit builds, and what is made of it."""

from __future__ import annotations

import pytest

from hvdcloud.errors import ExitCode, ImageError
from hvdcloud.image.build.buildkit import _Log
from hvdcloud.image.engine_stream import BuildEvent
from hvdcloud.image.plan import context
from hvdcloud.image.plan.context import Entry
from tests.support.build_steps import build_step

# docker 20.10.24, two stages side by side.
LOG = """\
#1 [internal] load remote build context
#1 sha256:4b682a15d29ea23bbb2ba4a070adc76cd6ad3d96da9b6e14149be4937361f74b
#1 DONE 0.0s

#2 copy /context /
#2 DONE 0.1s

#4 [tools 1/2] FROM docker.io/library/debian:bookworm-slim
#4 sha256:56bf5dcd38ee2f60f646b15b1b91e40b5e8375a457572f890edbccbd17190813
#4 sha256:56bf5dcd38ee2f60f646b15b1b91e40b5e8375a457572f890edbccbd17190813 10.49MB / 29.13MB 0.4s
#4 CACHED

#5 [tools 2/2] RUN --mount=type=cache,target=/mnt,id=x     echo hi
#5 0.213 hi
#5 0.214
#5 0.288 red
#5 ...

#6 [second  1/12] RUN sleep 2
#6 0.324 second
#6 DONE 2.4s

#5 [tools 2/2] RUN --mount=type=cache,target=/mnt,id=x     echo hi
#5 0.9 still here
#5 DONE 2.5s

#12 exporting to image
#12 exporting layers 0.0s done
#12 writing image sha256:833668a6690f62965964df61a86b52613ddfd18246bf62355bb8d257f106ceba done
#12 DONE 0.0s
"""


def read(log: str) -> tuple[_Log, list[BuildEvent]]:
    events: list[BuildEvent] = []
    step = build_step(Entry(path="dockerfiles/small.Dockerfile", content=b""), pip_hint="fix it")
    found = _Log(step, events.append)
    for line in filter(None, log.splitlines()):
        found.read(line)
    return found, events


def failed(log: str) -> ImageError:
    error = read(log)[0].error()
    assert error.code == ExitCode.IMAGE
    return error


def test_every_instruction_that_runs_is_told_with_what_it_prints() -> None:
    _, events = read(LOG)
    assert [event for event in events if event.kind != "done"] == [
        BuildEvent(kind="step", text="[tools 1/2] FROM docker.io/library/debian:bookworm-slim", step=4),
        BuildEvent(kind="layer", text="56bf5dcd38ee: 10.49MB / 29.13MB 0.4s", step=4),
        BuildEvent(kind="step", text="[tools 2/2] RUN echo hi", step=5),
        BuildEvent(kind="output", text="hi", step=5),
        BuildEvent(kind="output", text="red", step=5),
        BuildEvent(kind="step", text="[second 1/12] RUN sleep 2", step=6),
        BuildEvent(kind="output", text="second", step=6),
        BuildEvent(kind="output", text="still here", step=5),
    ]
    assert [event.step for event in events if event.kind == "done"] == [1, 2, 4, 6, 5, 12]


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
def test_a_failing_instruction_is_named_with_its_own_last_20_lines(last: str) -> None:
    work = "#10 [tools 2/2] RUN other\n#11 [stage-2 4/4] RUN make\n#10 0.1 noise\n"
    output = "".join(f"#11 0.{number} line {number}\n" for number in range(100))
    error = failed(work + output + "#10 0.2 more noise\n#10 ERROR: context canceled\n" + last)
    assert error.message == "a small image was not built: [stage-2 4/4] RUN make: exit code: 3"
    assert error.details.splitlines() == [f"line {number}" for number in range(80, 100)]


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
    error = failed(log)
    assert "the disk of the Docker engine is full" in error.message
    assert "docker system df" in error.hint


def test_in_our_own_dockerfiles_every_download_is_cached() -> None:
    for file in context.dockerfiles().glob("*.Dockerfile"):
        runs = [line for line in file.read_text().replace("\\\n", "").splitlines() if line.startswith("RUN ")]
        for run in runs:
            assert ("apt-get install" in run) <= ("id=hvdcloud-apt" in run and "Archives=/mnt" in run)
            assert (" pip " in run) <= ("id=hvdcloud-pip" in run or "--no-cache-dir" in run)
