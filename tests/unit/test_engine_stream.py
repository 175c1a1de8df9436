"""Docker's build and push streams, item by item as the engine sends them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from requests.exceptions import ChunkedEncodingError

from hvdcloud.errors import ExitCode, ImageError
from hvdcloud.image.engine_stream import BuildEvent, follow_build, follow_pull, follow_push, ignore

DIGEST = "sha256:" + "ab" * 32


def build(*items: dict[str, Any]) -> tuple[str, list[BuildEvent]]:
    events: list[BuildEvent] = []
    return follow_build(items, image="hvdcloud/digits:1", pip_hint="fix it", progress=events.append), events


def failing_build(*items: dict[str, Any]) -> ImageError:
    with pytest.raises(ImageError) as raised:
        build(*items)
    assert raised.value.code == ExitCode.IMAGE
    return raised.value


def step(number: int, text: str) -> dict[str, Any]:
    return {"stream": f"Step {number}/3 : {text}\n"}


def error(text: str) -> dict[str, Any]:
    return {"errorDetail": {"code": 1, "message": text}, "error": text}


def test_a_build_yields_its_image_and_each_step_with_its_number() -> None:
    image_id, events = build(
        step(1, "FROM base"),
        {"stream": " ---> 0123456789ab\n"},
        step(2, "RUN   make\tall"),
        {"stream": "cc -c a.c\n"},
        {"aux": {"ID": "sha256:1234"}},
        {"stream": "Successfully built 1234\n"},
    )
    assert image_id == "sha256:1234"
    assert events == [
        BuildEvent(kind="step", text="FROM base", step=1, steps=3),
        BuildEvent(kind="done", text="", step=1),
        BuildEvent(kind="step", text="RUN make all", step=2, steps=3),
        BuildEvent(kind="output", text="cc -c a.c", step=2),
        BuildEvent(kind="done", text="", step=2),
    ]


def test_a_step_that_fails_is_never_done() -> None:
    events: list[BuildEvent] = []
    items = [step(1, "FROM base"), step(2, "RUN make"), error("2")]
    with pytest.raises(ImageError):
        follow_build(items, image="digits", pip_hint="", progress=events.append)
    assert [event.step for event in events if event.kind == "done"] == [1]


def test_a_line_that_arrives_in_two_items_is_one_line() -> None:
    _, events = build({"stream": "Collecting to"}, {"stream": "rch\nDone\n"}, {"aux": {"ID": "sha256:1"}})
    assert [event.text for event in events] == ["Collecting torch", "Done"]


def test_a_failing_step_is_named_with_its_last_lines_only() -> None:
    output = [{"stream": f"line {number}\n"} for number in range(100)]
    failed = failing_build(step(1, "FROM base"), {"stream": "noise\n"}, step(2, "RUN make"), *output, error("2"))
    assert "at step 2/3: RUN make" in failed.message
    assert failed.details.splitlines() == [f"line {number}" for number in range(80, 100)]


def test_a_requirement_that_does_not_exist_is_reported_in_pips_words() -> None:
    failed = failing_build(
        step(3, "RUN pip install"),
        {"stream": "\x1b[91mERROR: Could not find a version that satisfies the requirement nosuch==9\n\x1b[0m"},
        {"stream": "\x1b[91mERROR: No matching distribution found for nosuch==9\n\x1b[0m"},
        error("The command '/bin/sh -c pip install' returned a non-zero code: 1"),
    )
    assert "satisfies the requirement nosuch==9" in failed.message
    assert failed.details.splitlines()[-1] == "ERROR: No matching distribution found for nosuch==9"
    assert failed.hint == "fix it"


@pytest.mark.parametrize("where", ["error", "output"])
def test_a_full_disk_is_called_one(where: str) -> None:
    text = "write /opt/wheels/torch.whl: no space left on device"
    last = [{"stream": text + "\n"}] if where == "output" else []
    failed = failing_build(step(1, "COPY . /"), *last, error(text if where == "error" else "returned 1"))
    assert "the disk of the Docker engine is full" in failed.message
    assert "docker system df" in failed.hint


def test_a_base_image_that_cannot_be_pulled_is_told_apart() -> None:
    failed = failing_build(step(1, "FROM debian AS tools"), error("Get registry-1.docker.io: no such host"))
    assert "can't be pulled" in failed.message
    assert "make base-image" in failed.hint


def test_an_engine_that_hangs_up_fails_the_build() -> None:
    def broken() -> Iterator[dict[str, Any]]:
        yield step(2, "RUN make")
        raise ChunkedEncodingError("Connection broken: IncompleteRead")

    with pytest.raises(ImageError, match="closed the connection during the build of digits, at step 2/3: RUN make"):
        follow_build(broken(), image="digits", pip_hint="", progress=ignore)


def test_a_stream_that_ends_without_an_image_is_no_success() -> None:
    assert "without an image" in failing_build(step(1, "FROM base")).message


def test_a_pull_tells_each_state_of_a_layer_once() -> None:
    events: list[BuildEvent] = []
    loading = [
        {"status": "Downloading", "id": "abc", "progressDetail": {"current": done, "total": 9}} for done in range(9)
    ]
    items = [*loading, {"status": "Pull complete", "id": "abc"}, {"status": f"Digest: {DIGEST}"}]
    follow_pull(items, reference="localhost:5000/digits", progress=events.append)
    assert [event.text for event in events] == ["abc: Downloading", "abc: Pull complete"]


def test_a_pull_that_fails_in_its_stream_is_none() -> None:
    with pytest.raises(ImageError, match="digits:1 was not pulled: unexpected EOF"):
        follow_pull([error("unexpected EOF")], reference="digits:1", progress=ignore)


def test_a_push_yields_the_registrys_digest_and_the_layers_progress() -> None:
    events: list[BuildEvent] = []
    items = [
        {"status": "The push refers to repository [localhost:5000/digits]"},
        {"status": "Pushing", "id": "abc", "progressDetail": {"current": 5, "total": 10}, "progress": "[==>  ]"},
        {"status": "Pushed", "id": "abc", "progressDetail": {}},
        {"status": f"1: digest: {DIGEST} size: 1234"},
        {"progressDetail": {}, "aux": {"Tag": "1", "Digest": DIGEST, "Size": 1234}},
    ]
    assert follow_push(items, reference="localhost:5000/digits:1", progress=events.append) == DIGEST
    assert [(event.text, event.step, event.steps) for event in events] == [
        ("abc: Pushing", 5, 10),
        ("abc: Pushed", 0, 0),
    ]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("unauthorized: authentication required", "docker login host.example"),
        (
            "denied: Permission artifactregistry.repositories.uploadArtifacts",
            "gcloud auth configure-docker host.example",
        ),
        ("dial tcp 127.0.0.1:5000: connect: connection refused", "host.example is up"),
        ("http: server gave HTTP response to HTTPS client", "insecure-registries"),
        ("received unexpected HTTP status: 500", "hvdcloud push tries again"),
    ],
)
def test_a_refused_push_says_what_to_do(text: str, hint: str) -> None:
    with pytest.raises(ImageError) as raised:
        follow_push(
            [{"status": "Preparing", "id": "a"}, error(text)], reference="host.example/digits:1", progress=ignore
        )
    assert text in raised.value.message
    assert hint in raised.value.hint


def test_a_push_that_ends_without_a_digest_is_no_success() -> None:
    with pytest.raises(ImageError, match="without a digest"):
        follow_push([{"status": "Pushed", "id": "a"}], reference="r/d:1", progress=ignore)
