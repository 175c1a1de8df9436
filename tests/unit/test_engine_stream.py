"""Docker's pull and push streams, item by item as the engine sends them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from requests.exceptions import ChunkedEncodingError

from hvdcloud.errors import ImageError
from hvdcloud.image.engine_stream import BuildEvent, follow_pull, follow_push, ignore

DIGEST = "sha256:" + "ab" * 32


def error(text: str) -> dict[str, Any]:
    return {"errorDetail": {"code": 1, "message": text}, "error": text}


def test_an_engine_that_hangs_up_fails_the_push() -> None:
    def broken() -> Iterator[dict[str, Any]]:
        yield {"status": "Preparing", "id": "a"}
        raise ChunkedEncodingError("Connection broken: IncompleteRead")

    with pytest.raises(ImageError, match="closed the connection during the push of digits:1: Connection broken"):
        follow_push(broken(), reference="digits:1", progress=ignore)


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
