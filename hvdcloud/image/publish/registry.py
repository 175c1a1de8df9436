"""What is asked of registries besides pushing: a token for Google's, and which digest a tag stands for."""

from __future__ import annotations

import contextlib
import re
from functools import partial
from typing import Any

from docker.auth import resolve_repository_name
from docker.errors import APIError, DockerException
from docker.utils import parse_repository_tag

from hvdcloud import engine
from hvdcloud.errors import CredentialsError, ImageError, UsageError
from hvdcloud.google.credentials import SCOPE, TOKEN_SECONDS, credentials_error, login_hint
from hvdcloud.google.registry_hosts import google_registry
from hvdcloud.image.engine_reports import inspected, says_refused

# https://github.com/distribution/reference/blob/v0.6.0/regexp.go
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*(?::\d+)?(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)+")
_ROLE = "roles/artifactregistry.writer on the repository is needed, and that the repository exists"


def host_of(reference: str) -> str:
    """The registry in an image's reference or a repository's name: `us-central1-docker.pkg.dev`, `127.0.0.1:5000`."""
    host: str = resolve_repository_name(reference)[0]
    return host


def auth_config(host: str) -> dict[str, str] | None:
    """Credentials for docker-py, with a new token, which lasts for an hour. Nothing is written anywhere.

    None for a registry that is not Google's: docker-py then takes those of `docker login`.

    Raises:
        CredentialsError: there are no Google credentials, or they give no token.
        NodeError: Google cannot be reached.
    """
    if not google_registry(host):
        return None
    import google.auth
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import Request

    try:
        credentials, _ = google.auth.default(scopes=[SCOPE])
        credentials.refresh(partial(Request(), timeout=TOKEN_SECONDS))
    except (GoogleAuthError, OSError, ValueError) as error:
        raise credentials_error(error, what=f"no Google token for the registry {host}") from error
    return {"username": "oauth2accesstoken", "password": str(credentials.token)}


def role_hint(host: str) -> str:
    """What to do about a registry that does not take the credentials."""
    return f"{login_hint()}; {_ROLE}" if google_registry(host) else f"docker login {host}"


def unreadable_credentials(host: str, error: Exception) -> CredentialsError:
    """The error for credentials of `docker login` that docker-py can't read."""
    said = f"the docker configuration's credentials for {host} can't be read: {error}"
    return CredentialsError(said, hint=f"docker login {host}")


def check_repository(repository: str, *, of: str, may_have_tag: bool = False) -> None:
    """Raises UsageError: what the key or option `of` names is no repository."""
    if not _REPOSITORY.fullmatch(parse_repository_tag(repository)[0] if may_have_tag else repository):
        hint = "write HOST/PATH in lower case, e.g. us-central1-docker.pkg.dev/PROJECT/hvdcloud/digits"
        raise UsageError(f"{of} {repository!r} is not a repository", hint=hint)


def target_of(reference: str, repository: str) -> str:
    """Where an image of the engine goes: `HOST/PATH:TAG`, with the tag of `repository`, else of `reference`."""
    path, own_tag = parse_repository_tag(repository)
    return f"{path}:{own_tag or parse_repository_tag(reference)[1] or 'latest'}"


def pinned(reference: str, digest: str) -> str:
    """`HOST/PATH@sha256:…`: always the same bytes, even if the tag moves."""
    return f"{parse_repository_tag(reference)[0]}@{digest}"


def digest_at_registry(reference: str) -> str | None:
    """The digest of a tag (`HOST/PATH:TAG`) now, as the engine learns it from the registry; None: no such tag.

    Raises:
        CredentialsError: the registry refused.
        ImageError: the registry cannot be reached.
        NodeError: no engine.
    """
    host = host_of(reference)
    credentials = auth_config(host)
    try:
        with contextlib.closing(engine.connect()) as client:
            api: Any = client.api  # Not all of docker-py's methods have types.
            found = api.inspect_distribution(reference, auth_config=credentials)
    except APIError as error:
        said = str(error.explanation or error)
        if error.status_code == 404 or "manifest unknown" in said or "name unknown" in said:
            return None
        message = f"{host} does not say what {reference} is: {said}"
        if error.status_code in (401, 403) or says_refused(said):
            raise CredentialsError(message, hint=role_hint(host)) from error
        hint = f"check that {host} is up and image.repository is right, then try again"
        raise ImageError(message, hint=hint) from error
    except DockerException as error:
        raise unreadable_credentials(host, error) from error
    return str(found["Descriptor"]["digest"])


def published(reference: str, repository: str) -> str | None:
    """The digest under which nodes can run an image; None: it has to be pushed first.

    What another machine has pushed, such as a CI job, is as good: the tag is made of the content.

    Raises:
        ImageError: the tag at the registry stands for something else than what this engine pushed last.
        CredentialsError: the registry refused.
        NodeError: no engine.
    """
    target = target_of(reference, repository)
    there, path = digest_at_registry(target), parse_repository_tag(target)[0]
    with contextlib.closing(engine.connect()) as client:
        remembered = (inspected(client.api, reference) or {}).get("RepoDigests") or ()
    ours = {digest for name, _, digest in (entry.partition("@") for entry in remembered) if name == path}
    if there is None or not ours or there in ours:
        return there
    raise ImageError(
        f"the tag {target} has moved: it was pushed from elsewhere and is now {there}, not {', '.join(sorted(ours))}",
        hint="hvdcloud push makes it this project's image again; or set another image.repository",
    )
