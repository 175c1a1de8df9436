"""Docker's pull and push streams, item by item as the engine sends them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from requests.exceptions import ChunkedEncodingError

from hvdcloud.errors import ImageError, UsageError
from hvdcloud.image.engine_reports import ignore
from hvdcloud.image.publish.registry import check_repository
from hvdcloud.image.publish.transfer import pull, send

DIGEST = f"sha256:{'1' * 64}"


class Engine:
    """An engine as docker-py's low-level client shows it, which says this."""

    def __init__(self, items: Iterable[dict[str, Any]]) -> None:
        self._items = items

    def push(self, *_: Any, **__: Any) -> Iterator[dict[str, Any]]:
        yield from self._items

    pull = push


def pushed(items: Iterable[dict[str, Any]], reference: str = "host.example/digits:1") -> str:
    return send(Engine(items), reference, credentials=None, progress=ignore)


def error(text: str) -> dict[str, Any]:
    return {"errorDetail": {"code": 1, "message": text}, "error": text}


def test_an_engine_that_hangs_up_fails_the_push() -> None:
    def broken() -> Iterator[dict[str, Any]]:
        yield {"status": "Preparing", "id": "a"}
        raise ChunkedEncodingError("Connection broken: IncompleteRead")

    with pytest.raises(ImageError, match="digits:1 was not pushed: the Docker engine closed the connection: Conn"):
        pushed(broken())


def test_a_pull_that_fails_in_its_stream_is_none() -> None:
    with pytest.raises(ImageError, match="digits:1 was not pulled: unexpected EOF"):
        pull(Engine([error("unexpected EOF")]), "digits:1", progress=ignore)


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
        pushed([{"status": "Preparing", "id": "a"}, error(text)])
    assert text in raised.value.message
    assert hint in raised.value.hint


def test_a_push_that_ends_without_a_digest_is_no_success() -> None:
    with pytest.raises(ImageError, match="without a digest"):
        pushed([{"status": "Pushed", "id": "a"}])
    assert pushed([{"status": f"1: digest: {DIGEST} size: 528"}]) == DIGEST


@pytest.mark.parametrize("name", ["digits", "gcr.io/Lab/digits", "gcr.io/lab/", "https://gcr.io/lab/digits", "a/b c"])
def test_what_is_no_repository_is_refused_before_anything_is_built(name: str) -> None:
    with pytest.raises(UsageError, match=r"image\.repository '.*' is not a repository"):
        check_repository(name, of="image.repository", may_have_tag=True)
    for fine in ("gcr.io/lab/digits", "127.0.0.1:5000/a/b-c:v1.0", "someone/digits"):
        check_repository(fine, of="image.repository", may_have_tag=True)
    with pytest.raises(UsageError, match=r"--cache-to '.*' is not a repository"):
        check_repository("gcr.io/lab/cache:1", of="--cache-to")
