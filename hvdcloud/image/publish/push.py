"""`push`: an image of the engine to any registry."""

from __future__ import annotations

import contextlib
import itertools
import time
from typing import Any

from docker.errors import APIError, DockerException, ImageNotFound
from docker.utils import parse_repository_tag

from hvdcloud import engine
from hvdcloud.errors import CredentialsError, ImageError, UsageError
from hvdcloud.google import grants
from hvdcloud.google.registry_hosts import google_registry
from hvdcloud.image import engine_stream
from hvdcloud.image.engine_stream import BuildEvent, Progress
from hvdcloud.image.publish import registry

# A registry that takes in a layer of gigabytes may say nothing while it looks it through.
SILENCE_SECONDS = 600


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
        UsageError: `repository` is not a repository name.
        CredentialsError: the docker configuration's credentials can't be read, or Google's are missing or refused.
        ImageError: the image does not exist or is for another architecture; or the registry refused, or can't be
            reached.
        NodeError: no engine.
    """
    target = registry.target_of(reference, repository)
    with contextlib.closing(engine.connect(timeout=SILENCE_SECONDS)) as client:
        if other := engine_stream.other_architecture(client.api, reference, architecture):
            message = f"the image {reference} is for {other}, and the nodes are {architecture}"
            raise ImageError(message, hint="hvdcloud build --remote")
        _tag(client, reference, repository, target)
        host = registry.host_of(target)
        if not google_registry(host):
            return _send(client, target, credentials=None, progress=progress)
        for attempt in itertools.count():
            try:
                return _send(client, target, credentials=registry.auth_config(host), progress=progress)
            except ImageError as error:
                if not engine_stream.says_refused(error.message):
                    raise
                # A token ends after an hour, maybe in the middle of a push; layers that arrived are not sent twice.
                if attempt and time.time() >= settled_at:
                    hint = registry.role_hint(host)
                    raise CredentialsError(error.message, hint=hint, details=error.details) from error
            if attempt:
                progress(BuildEvent(kind="image", text=grants.waiting(settled_at)))
                time.sleep(grants.PAUSE_SECONDS)
        raise AssertionError("not reached")


def _tag(client: Any, reference: str, repository: str, target: str) -> None:
    try:
        client.api.tag(reference, *parse_repository_tag(target))
    except ImageNotFound:
        raise ImageError(f"there is no image {reference} to push", hint="hvdcloud build") from None
    except APIError as error:
        # Engines disagree on whose error that is: 20.10 answers 500.
        if not error.is_client_error() and "invalid reference format" not in str(error):
            raise engine_stream.push_error(str(error.explanation or error), reference=target) from error
        raise UsageError(
            f"image.repository {repository!r} is not a repository: {error.explanation}",
            hint="write HOST/PATH in lower case, e.g. us-central1-docker.pkg.dev/PROJECT/hvdcloud/digits",
        ) from error


def _send(client: Any, target: str, *, credentials: dict[str, str] | None, progress: Progress) -> str:
    path, tag = parse_repository_tag(target)
    try:
        items = client.api.push(path, tag=tag, stream=True, decode=True, auth_config=credentials)
        with contextlib.closing(items):
            return engine_stream.follow_push(items, reference=target, progress=progress)
    except APIError as error:
        raise engine_stream.push_error(str(error.explanation or error), reference=target) from error
    except DockerException as error:
        raise registry.unreadable_credentials(registry.host_of(target), error) from error
