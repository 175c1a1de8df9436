"""`pull`: an image of any registry to an engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from docker.errors import APIError, DockerException
from docker.utils import parse_repository_tag

from hvdcloud.errors import ImageError
from hvdcloud.image.engine_stream import Progress, follow_pull
from hvdcloud.image.publish import registry


def pull(
    api: Any,
    reference: str,
    *,
    progress: Progress,
    architecture: str = "",
    credentials: Mapping[str, str] | None = None,
) -> None:
    """Have an engine pull an image.

    Args:
        api: docker-py's low-level client.
        reference: by tag or by digest.
        architecture: that it has to be for: `amd64`; "": the engine's own.
        credentials: docker-py's; None: those of `docker login`, for Google's registries a new token.

    Raises:
        ImageError: the engine or the registry refuses, or cannot be reached.
        CredentialsError: the docker configuration's credentials can't be read, or Google's are missing.
    """
    host = registry.host_of(reference)
    credentials = credentials or registry.auth_config(host)
    path, tag = parse_repository_tag(reference)
    platform = {"platform": f"linux/{architecture}"} if architecture else {}
    try:
        items = api.pull(path, tag=tag or "latest", stream=True, decode=True, auth_config=credentials, **platform)
        follow_pull(items, reference=reference, progress=progress)
    except APIError as error:
        message = f"{reference} was not pulled: {error.explanation or error}"
        raise ImageError(message, hint=f"docker pull {reference} tries it alone") from error
    except DockerException as error:
        raise registry.unreadable_credentials(host, error) from error
