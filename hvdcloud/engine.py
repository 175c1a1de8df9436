"""The connection to the Docker engine, for image builds, pushes and the local provider."""

from __future__ import annotations

import errno
import importlib
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hvdcloud.errors import CredentialsError, NodeError
from hvdcloud.modules import DOCKER_OVER_SSH, load

if TYPE_CHECKING:
    import docker

START_HINT = "start Docker, then try again: `sudo systemctl start docker` (or `make engine` in hvdcloud's repository)"


def connect(timeout: int = 60) -> docker.DockerClient:
    """The engine that `DOCKER_HOST` names, else the one of the docker command's current context.

    Args:
        timeout: seconds for which one request may be silent.

    Raises:
        NodeError: no engine answers there. Each later request raises one, too, if the engine does not answer it.
        CredentialsError: one does, but this user may not use its socket, or its TLS files do not fit.
    """
    load("docker")
    from docker.errors import DockerException, TLSParameterError
    from requests.exceptions import SSLError

    from hvdcloud.engine_client import EngineClient, EngineSilentError

    address, hint = "its default address", START_HINT
    unreachable: tuple[type[Exception], ...] = (DockerException, OSError)
    try:
        settings = _settings()
        address = str(settings.get("base_url") or address)
        if os.environ.get("DOCKER_HOST"):
            # In the user's spelling.
            address = f"DOCKER_HOST={os.environ['DOCKER_HOST']}"
            hint = "unset DOCKER_HOST takes this machine's engine; else set it to one that runs"
        elif "base_url" in settings:
            hint = "docker context ls shows the engines; docker context use default takes this machine's"
        if "ssh://" in address:
            unreachable += (_ssh_error(),)
        return EngineClient(address=address, timeout=timeout, **settings)
    except TLSParameterError as error:
        raise CredentialsError(
            f"the Docker engine's TLS settings can't be used: {error}", hint="check DOCKER_CERT_PATH"
        ) from error
    except unreachable as error:
        causes = list(_causes(error))
        if silent := [cause for cause in causes if isinstance(cause, EngineSilentError)]:
            raise silent[0] from error
        refused = any(isinstance(cause, OSError) and cause.errno in (errno.EACCES, errno.EPERM) for cause in causes)
        if refused and "ssh://" not in address:
            raise CredentialsError(
                f"the Docker engine at {address} may not be used by this user: permission denied",
                hint="sudo usermod -aG docker $USER, then log in again",
            ) from error
        if any(isinstance(cause, SSLError) for cause in causes):
            raise CredentialsError(
                f"the Docker engine at {address} and this machine do not trust each other: {causes[-1]}",
                hint="check DOCKER_CERT_PATH and DOCKER_TLS_VERIFY",
            ) from error
        raise NodeError(f"no Docker engine answers at {address}: {_reason(causes)}", hint=hint) from error


def _ssh_error() -> type[Exception]:
    """Give docker-py its SSH transport. Returns the class of what that raises."""
    from paramiko import SSHException

    client: Any = importlib.import_module("docker.api.client")
    client.SSHHTTPAdapter = importlib.import_module(DOCKER_OVER_SSH).SSHHTTPAdapter
    return SSHException


def keeps_files(info: Mapping[str, Any]) -> bool:
    """Whether an engine has containerd's image store, which keeps layers as the files that it was given.

    Args:
        info: what `docker info` says.
    """
    return any("containerd.snapshotter" in str(value) for _, value in info.get("DriverStatus") or [])


def command_environment() -> dict[str, str]:
    """This process's environment, with which the docker command talks to the very engine that `connect` does.

    docker-py does not know DOCKER_CONTEXT, so it is set here and never inherited.
    """
    environment = {name: value for name, value in os.environ.items() if name != "DOCKER_CONTEXT"}
    if not environment.get("DOCKER_HOST"):
        environment.pop("DOCKER_HOST", None)
        context = _context()
        environment["DOCKER_CONTEXT"] = context.Name if context else "default"
    return environment


def address_environment() -> dict[str, str]:
    """This process's environment, with which programs that know DOCKER_HOST alone talk to the engine that `connect`
    does."""
    context = None if os.environ.get("DOCKER_HOST") else _context()
    return {**os.environ} if context is None else {**os.environ, "DOCKER_HOST": str(context.Host)}


def _settings() -> dict[str, Any]:
    """docker-py's arguments. It reads DOCKER_HOST, but knows of the docker command's contexts only on request."""
    from docker.utils import kwargs_from_env

    settings: dict[str, Any] = {**kwargs_from_env()}
    if "base_url" in settings or os.environ.get("DOCKER_HOST"):
        return settings
    if (context := _context()) is not None:
        settings |= {"base_url": context.Host} | ({"tls": context.TLSConfig} if context.TLSConfig is not None else {})
    return settings


def _context() -> Any:
    """The docker command's current context; None if that is not a separate engine."""
    from docker.context import ContextAPI

    context = ContextAPI.get_current_context()
    return context if context is not None and context.Name != "default" and context.Host else None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and all that it wraps: requests and urllib3 hide the operating system's error three levels down."""
    seen: set[int] = set()
    waiting: list[BaseException] = [error]
    while waiting:
        current = waiting.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        waiting += [inner for inner in current.args if isinstance(inner, BaseException)]
        waiting += [inner for inner in (current.__cause__, current.__context__) if inner is not None]


def _reason(causes: list[BaseException]) -> str:
    return next((cause.strerror for cause in causes if isinstance(cause, OSError) and cause.strerror), str(causes[0]))


def says_disk_full(said: str) -> bool:
    """Whether an engine's disk is full; it passes the kernel's words on."""
    return "no space left on device" in said.lower()
