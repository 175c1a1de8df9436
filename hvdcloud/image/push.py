"""`push`: an image of the engine to any registry."""

from __future__ import annotations

import contextlib

from hvdcloud import engine
from hvdcloud.errors import CredentialsError, ImageError, UsageError
from hvdcloud.image import stream
from hvdcloud.image.stream import Progress

# A registry that takes in a layer of gigabytes may say nothing while it looks it through.
SILENCE_SECONDS = 600


def push(reference: str, repository: str, *, progress: Progress) -> str:
    """Pushes `reference` and returns the digest (`sha256:…`) that the registry gave it: what nodes are to run.

    Credentials are those of `docker login`, credential helpers included.

    Args:
        reference: the image in the engine, with a tag.
        repository: `HOST/PATH`; a tag of its own (`HOST/PATH:TAG`) is used instead of the reference's.
        progress: called as layers arrive.

    Raises:
        UsageError: `repository` is no repository name.
        CredentialsError: the docker configuration's credentials can't be read.
        ImageError: the image is not there, or the registry refused or can't be reached.
        NodeError: no engine.
    """
    from docker.errors import APIError, DockerException, ImageNotFound
    from docker.utils import parse_repository_tag

    path, own_tag = parse_repository_tag(repository)
    tag = own_tag or parse_repository_tag(reference)[1] or "latest"
    target = f"{path}:{tag}"
    with contextlib.closing(engine.connect(timeout=SILENCE_SECONDS)) as client:
        try:
            client.api.tag(reference, path, tag)
        except ImageNotFound:
            raise ImageError(f"there is no image {reference} to push", hint="hvdcloud build") from None
        except APIError as error:
            # Engines disagree on whose error that is: 20.10 answers 500.
            if not error.is_client_error() and "invalid reference format" not in str(error):
                raise stream.push_error(str(error.explanation or error), reference=target) from error
            raise UsageError(
                f"image.repository {repository!r} is no repository: {error.explanation}",
                hint="write HOST/PATH in lower case, e.g. us-central1-docker.pkg.dev/PROJECT/hvdcloud/digits",
            ) from error
        try:
            items = client.api.push(path, tag=tag, stream=True, decode=True)
            with contextlib.closing(items):
                return stream.follow_push(items, reference=target, progress=progress)
        except APIError as error:
            raise stream.push_error(str(error.explanation or error), reference=target) from error
        except DockerException as error:
            raise CredentialsError(
                f"the docker configuration's credentials for {path.partition('/')[0]} can't be read: {error}",
                hint=f"docker login {path.partition('/')[0]}",
            ) from error
