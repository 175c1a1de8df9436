"""The connection to the Docker engine, for image builds, pushes and the local provider."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdcloud.errors import CredentialsError, NodeError, UsageError

if TYPE_CHECKING:
    import docker

START_HINT = "start Docker, then try again: `sudo systemctl start docker` (or `make engine` in hvdcloud's repository)"


def connect(timeout: int = 60) -> docker.DockerClient:
    """The engine that the docker command uses: by DOCKER_HOST, else DOCKER_CONTEXT, else its current context.

    Args:
        timeout: seconds for which one request may be silent.

    Raises:
        NodeError: no engine answers there. Each later request raises one, too, if the engine does not answer it.
        CredentialsError: one does, but this user may not use its socket.
        UsageError: the docker command's context does not exist, or its configuration cannot be read.
    """
    from docker.errors import DockerException
    from paramiko import SSHException

    from hvdcloud.engine_client import EngineClient, EngineSilentError

    address, hint = "its default address", START_HINT
    try:
        settings = _settings()
        address = str(settings.get("base_url") or address)
        if os.environ.get("DOCKER_HOST"):
            # In the user's spelling.
            address = f"DOCKER_HOST={os.environ['DOCKER_HOST']}"
            hint = "unset DOCKER_HOST takes this machine's engine; else set it to one that runs"
        elif "base_url" in settings:
            hint = _other_context()
        return EngineClient(address=address, timeout=timeout, **settings)
    except (DockerException, OSError, SSHException) as error:
        # requests and urllib3 hide the operating system's error three levels down.
        causes: list[BaseException] = [error]
        while cause := causes[-1].__cause__ or causes[-1].__context__:
            causes.append(cause)
        for each in causes:
            if isinstance(each, EngineSilentError):
                raise each from error
            if isinstance(each, PermissionError) and "ssh://" not in address:
                raise CredentialsError(
                    f"the Docker engine at {address} may not be used by this user: permission denied",
                    hint="sudo usermod -aG docker $USER, then log in again",
                ) from error
        said = [each.strerror for each in causes if isinstance(each, OSError) and each.strerror]
        why = said[0] if said else str(error)
        raise NodeError(f"no Docker engine answers at {address}: {why}", hint=hint) from error


def keeps_files(info: Mapping[str, Any]) -> bool:
    """Whether an engine has containerd's image store, which keeps layers as the files that it was given.

    Args:
        info: what `docker info` says.
    """
    return any("containerd.snapshotter" in str(value) for _, value in info.get("DriverStatus") or [])


def command_environment() -> dict[str, str]:
    """This process's environment, with which the docker command talks to the very engine that `connect` does."""
    environment = {name: value for name, value in os.environ.items() if name != "DOCKER_CONTEXT"}
    if not environment.get("DOCKER_HOST"):
        environment.pop("DOCKER_HOST", None)
        context = _context()
        environment["DOCKER_CONTEXT"] = context.Name if context else "default"
    return environment


def _settings() -> dict[str, Any]:
    """docker-py's arguments. It reads DOCKER_HOST, but knows of the docker command's contexts only on request."""
    from docker.auth import load_config
    from docker.errors import DockerException
    from docker.utils import config, kwargs_from_env

    if not Path(folder := os.environ.get("DOCKER_CONFIG") or "/").is_absolute():
        message = f"DOCKER_CONFIG={folder} names another folder in each working folder, also one in a project"
        raise UsageError(message, hint=f'export DOCKER_CONFIG="$PWD/{folder}"')
    try:
        load_config(config_dict=config.load_general_config())
    except (DockerException, AttributeError, TypeError, ValueError) as error:
        file = str(config.find_config_file())
        message = f"{file} is no configuration of the docker command: {error}"
        raise UsageError(message, hint=f"correct {file}, or move it away: docker login makes a new one") from error
    context = None if os.environ.get("DOCKER_HOST") else _context()
    if context is None:
        return {**kwargs_from_env()}
    return {"base_url": context.Host} | ({"tls": context.TLSConfig} if context.TLSConfig is not None else {})


def _context() -> Any:
    """docker-py's Context of the engine that the docker command uses; None: the default one.

    Raises UsageError: the context does not exist, or cannot be read.
    """
    from docker.context import ContextAPI
    from docker.context.config import get_current_context_name
    from docker.utils.config import find_config_file

    name, why = os.environ.get("DOCKER_CONTEXT") or get_current_context_name(), ""
    context: Any = None
    try:
        # Without a configuration, docker-py would take contexts from the working folder.
        context = ContextAPI.get_context(name) if find_config_file() else None
    except Exception as error:  # noqa: BLE001 - docker-py raises no other class for a file that it cannot read
        why = f": {error}"
    if context is None and name != "default":
        message = f"the Docker engine is not known: there is no context {name}{why}"
        raise UsageError(message, hint=_other_context())
    return context if context is not None and context.Name != "default" and context.Host else None


def _other_context() -> str:
    other = "unset DOCKER_CONTEXT" if os.environ.get("DOCKER_CONTEXT") else "docker context use default"
    return f"docker context ls shows the engines; {other} takes this machine's"


def says_disk_full(said: str) -> bool:
    """Whether an engine's disk is full; it passes the kernel's words on."""
    return "no space left on device" in said.lower()
