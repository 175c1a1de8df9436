"""`push` and `pull`: an image between an engine and any registry.

One that fails has answered 200 long before: the failure is one more item of the stream, and a caller that does not
check every item takes it for success.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from docker.errors import APIError, DockerException, ImageNotFound, StreamParseError
from docker.utils import parse_repository_tag
from requests.exceptions import RequestException
from urllib3.exceptions import HTTPError

from hvdcloud import engine
from hvdcloud.errors import CredentialsError, ImageError
from hvdcloud.google import grants
from hvdcloud.google.registry_hosts import google_registry
from hvdcloud.image.engine_reports import BuildEvent, Progress, other_architecture, says_refused
from hvdcloud.image.publish import registry

# A registry that takes in a layer of gigabytes may say nothing while it looks it through.
SILENCE_SECONDS = 600


def pull(
    api: Any,
    reference: str,
    *,
    progress: Progress,
    architecture: str = "",
    credentials: Mapping[str, str] | None = None,
) -> None:
    """Have an engine pull an image; each state of a layer is reported once, not every megabyte.

    Args:
        api: docker-py's low-level client.
        reference: by tag or by digest.
        architecture: that it has to be for: `amd64`; "": the engine's own.
        credentials: docker-py's; None: those of `docker login`, for Google's registries a new token.

    Raises:
        ImageError: the engine or the registry refuses, or cannot be reached.
        CredentialsError: the docker configuration's credentials can't be read, or Google's are missing.
    """
    told: dict[str, str] = {}

    def changed(event: BuildEvent) -> None:
        layer, _, state = event.text.partition(": ")
        if told.get(layer) != state:
            told[layer] = state
            progress(event)

    def failed(said: str) -> ImageError:
        return ImageError(f"{reference} was not pulled: {said}", hint=f"docker pull {reference} tries it alone")

    credentials = credentials or registry.auth_config(registry.host_of(reference))
    platform = {"platform": f"linux/{architecture}"} if architecture else {}
    _transfer(api.pull, reference, credentials, failed=failed, progress=changed, **platform)


def push(
    reference: str, repository: str, *, progress: Progress, architecture: str = "", settled_at: float = 0.0
) -> str:
    """Pushes `reference` and returns the digest (`sha256:…`) that the registry gave it: what nodes are to run.

    Credentials are those of `docker login`, credential helpers included; for Google's registries a new access token of
    the Application Default Credentials.

    Args:
        reference: the image in the engine, with a tag.
        repository: `HOST/PATH`; a tag of its own (`HOST/PATH:TAG`) is used instead of the reference's.
        architecture: of the nodes, in the engine's words: `amd64`; "": any.
        settled_at: until then (seconds of `time.time()`) Google's registry may refuse what is granted already.

    Raises:
        CredentialsError: the docker configuration's credentials can't be read, or Google's are missing or refused.
        ImageError: the image does not exist or is for another architecture; or the registry refused, or can't be
            reached.
        NodeError: no engine.
    """
    target = registry.target_of(reference, repository)
    host = registry.host_of(target)
    with contextlib.closing(engine.connect(timeout=SILENCE_SECONDS)) as client:
        api: Any = client.api
        if other := other_architecture(api, reference, architecture):
            message = f"the image {reference} is for {other}, and the nodes are {architecture}"
            raise ImageError(message, hint="hvdcloud build --remote")
        try:
            api.tag(reference, *parse_repository_tag(target))
        except ImageNotFound:
            raise ImageError(f"there is no image {reference} to push", hint="hvdcloud build") from None
        except APIError as error:
            raise push_error(str(error.explanation or error), reference=target) from error
        for attempt in itertools.count():
            try:
                return send(api, target, credentials=registry.auth_config(host), progress=progress)
            except ImageError as error:
                if not google_registry(host) or not says_refused(error.message):
                    raise
                # A token ends after an hour, maybe in the middle of a push; layers that arrived are not sent twice.
                if attempt and time.time() >= settled_at:
                    hint = registry.role_hint(host)
                    raise CredentialsError(error.message, hint=hint, details=error.details) from error
            if attempt:
                progress(BuildEvent(kind="image", text=grants.waiting(settled_at)))
                time.sleep(grants.PAUSE_SECONDS)
        raise AssertionError("not reached")


def send(api: Any, target: str, *, credentials: Mapping[str, str] | None, progress: Progress) -> str:
    """Pushes an image that has the name `HOST/PATH:TAG` already; returns its digest there. Raises as `push`."""
    digest = _transfer(
        api.push, target, credentials, failed=lambda said: push_error(said, reference=target), progress=progress
    )
    if not digest:
        message = f"the push of {target} ended without a digest, so what the registry has is not known"
        raise ImageError(message, hint="hvdcloud push tries again")
    return digest


def push_error(text: str, *, reference: str) -> ImageError:
    """The error of a push, with what to do about it."""
    host = registry.host_of(reference)
    hint = (
        f"check that {host} is up and has image.repository, which hvdcloud setup makes; then hvdcloud push again: "
        "layers that have arrived are not sent twice"
    )
    if says_refused(text):
        hint = f"docker login {host} (for Artifact Registry: gcloud auth configure-docker {host})"
    return ImageError(f"{reference} was not pushed: {text}", hint=hint)


def _transfer(
    call: Callable[..., Iterable[Mapping[str, Any]]],
    reference: str,
    credentials: Mapping[str, str] | None,
    *,
    failed: Callable[[str], ImageError],
    progress: Progress,
    **more: str,
) -> str:
    """Reads a push's or a pull's stream to its end; returns the digest that it names, if any.

    Raises:
        ImageError: by `failed`, with what the engine or the registry says; or the engine closed the connection.
        CredentialsError: the docker configuration's credentials can't be read.
    """
    path, tag = parse_repository_tag(reference)
    digest = ""
    try:
        items = call(path, tag=tag or "latest", stream=True, decode=True, auth_config=credentials, **more)
    except APIError as error:
        raise failed(str(error.explanation or error)) from error
    except DockerException as error:
        raise registry.unreadable_credentials(registry.host_of(reference), error) from error
    for item in _received(items, failed):
        if "error" in item:
            raise failed(str(item["error"]).strip())
        state = str(item.get("status", ""))
        digest = str(item.get("aux", {}).get("Digest", digest))
        # An engine with containerd's image store says it in words only.
        if said := re.search(r"digest: (sha256:[0-9a-f]{64})", state):
            digest = said[1]
        if "id" in item:
            sizes = item.get("progressDetail") or {}
            done, size = (int(sizes.get(key) or 0) for key in ("current", "total"))
            progress(BuildEvent(kind="layer", text=f"{item['id']}: {state}", done=done, size=size))
    return digest


def _received(items: Iterable[Mapping[str, Any]], failed: Callable[[str], ImageError]) -> Iterator[Mapping[str, Any]]:
    """The items; a connection that breaks is an ImageError."""
    try:
        yield from items
    except (RequestException, HTTPError, StreamParseError, DockerException, OSError) as error:
        raise failed(f"the Docker engine closed the connection: {error}") from error
