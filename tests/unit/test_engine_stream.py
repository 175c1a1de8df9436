"""Docker's pull and push streams, item by item as the engine sends them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from requests.exceptions import ChunkedEncodingError

from hvdcloud.errors import ImageError
from hvdcloud.image.engine_stream import follow_pull, follow_push, ignore


def error(text: str) -> dict[str, Any]:
    return {"errorDetail": {"code": 1, "message": text}, "error": text}


def test_an_engine_that_hangs_up_fails_the_push() -> None:
    def broken() -> Iterator[dict[str, Any]]:
        yield {"status": "Preparing", "id": "a"}
        raise ChunkedEncodingError("Connection broken: IncompleteRead")

    with pytest.raises(ImageError, match="closed the connection during the push of digits:1: Connection broken"):
        follow_push(broken(), reference="digits:1", progress=ignore)


def test_a_pull_that_fails_in_its_stream_is_none() -> None:
    with pytest.raises(ImageError, match="digits:1 was not pulled: unexpected EOF"):
        follow_pull([error("unexpected EOF")], reference="digits:1", progress=ignore)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("unauthorized: authentication required", "docker login host.example"),
        (
            "denied: Permission artifactregistry.repositories.uploadArtifacts",
            "gcloud auth configure-docker host.example",
        ),
        ("dial tcp 127.0.0.1:5000: connect: connection refused", "host.example is up"),
        ("received unexpected HTTP status: 500", "hvdcloud push again"),
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
