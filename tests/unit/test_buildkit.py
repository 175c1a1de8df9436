"""What the docker command prints while BuildKit builds, and what is made of it."""

from __future__ import annotations

import pytest

from hvdcloud.errors import ExitCode, ImageError
from hvdcloud.image.build.buildkit import _Log
from hvdcloud.image.plan import context
from hvdcloud.image.plan.context import Entry
from tests.support.build_steps import build_step


def failed(log: str) -> ImageError:
    step = build_step(Entry(path="dockerfiles/small.Dockerfile", content=b""), pip_hint="fix it")
    found = _Log(step, lambda _: None)
    for line in filter(None, log.splitlines()):
        found.read(line)
    return found.error()


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
    assert error.code is ExitCode.IMAGE
    assert error.details.splitlines() == [f"line {number}" for number in range(80, 100)]


def test_of_an_instruction_that_is_a_whole_script_the_beginning_is_named() -> None:
    message = failed(f"#3 [tools 2/2] RUN cd /src && {'make && ' * 100}\n#3 ERROR: exit code: 3\n").message
    assert message.startswith("a small image was not built: [tools 2/2] RUN cd /src && make &&")
    assert message.endswith(" …: exit code: 3")
    assert len(message) < 160


def test_in_our_own_dockerfiles_every_download_is_cached() -> None:
    for file in context.dockerfiles().glob("*.Dockerfile"):
        runs = [line for line in file.read_text().replace("\\\n", "").splitlines() if line.startswith("RUN ")]
        for run in runs:
            assert ("apt-get install" in run) <= ("id=hvdcloud-apt" in run and "Archives=/mnt" in run)
            assert (" pip " in run) <= ("id=hvdcloud-pip" in run or "--no-cache-dir" in run)
