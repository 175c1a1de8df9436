"""A registry on this machine for as long as hosts pull an image that is in no repository."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdcloud.errors import HvdcloudError, ImageError
from hvdcloud.image.engine_reports import ignore, inspected
from hvdcloud.image.publish.transfer import pull, send

IMAGE = "registry:2"
PROGRAM = "docker-registry"
"""Debian's."""
_USER = "hvdcloud"
_START_SECONDS = 20.0
_MOST_BYTES = 30 << 30
"""Of layers that are kept for the next time."""


class NoRegistryError(ImageError):
    """There is none here, or this machine's engine does not reach it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaptopRegistry:
    """A registry that listens on 127.0.0.1 and asks for a password."""

    port: int
    password: str

    @property
    def credentials(self) -> dict[str, str]:
        """For docker-py."""
        return {"username": _USER, "password": self.password}

    def push(self, api: Any, image: str) -> str:
        """The digest of an image of this machine's engine, once the registry has it. Raises NoRegistryError."""
        name = f"127.0.0.1:{self.port}/hvdcloud"
        api.tag(image, name, "image")
        try:
            return send(api, f"{name}:image", credentials=self.credentials, progress=ignore)
        except ImageError as error:
            message = f"this machine's registry did not get it: {error}"
            raise NoRegistryError(message, hint="docker info shows whether the engine is healthy") from error
        finally:
            api.remove_image(f"{name}:image")


@contextlib.contextmanager
def laptop_registry(api: Any) -> Iterator[LaptopRegistry]:
    """Debian's docker-registry, or a container of the registry's image, during the block. Layers are kept for later.

    Args:
        api: docker-py's, of this machine's engine.

    Raises:
        NoRegistryError: there is neither, or the engine is on another machine.
    """
    from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

    if not api.base_url.startswith("http+docker://"):
        raise NoRegistryError("the Docker engine is on another machine", hint="unset DOCKER_HOST")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "hvdcloud", "registry")
    if sum(file.stat().st_size for file in cache.rglob("data")) > _MOST_BYTES:
        shutil.rmtree(cache, ignore_errors=True)
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    password = secrets.token_urlsafe(24)
    with tempfile.TemporaryDirectory(prefix="hvdcloud-registry-") as folder:
        config = _configure(Path(folder), cache, port=port, password=password)
        program = shutil.which(PROGRAM)
        with _process(program, config) if program else _container(api, config, cache):
            refused, end = retry_if_exception_type(OSError), stop_after_delay(_START_SECONDS)
            answers = Retrying(retry=refused, stop=end, wait=wait_fixed(0.05), reraise=True)
            try:
                answers(socket.create_connection, ("127.0.0.1", port), timeout=1).close()
            except OSError as error:
                message = f"the registry on this machine did not answer within {_START_SECONDS:.0f} s: {error}"
                raise NoRegistryError(message, hint=f"{PROGRAM} serve shows why") from error
            yield LaptopRegistry(port=port, password=password)


def _configure(folder: Path, cache: Path, *, port: int, password: str) -> Path:
    import bcrypt

    # Random passwords need no slow hash.
    hashed = bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()
    (folder / "passwords").write_text(f"{_USER}:{hashed}\n")
    document = {
        "version": 0.1,
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(cache)}},
        "http": {"addr": f"127.0.0.1:{port}"},
        "auth": {"htpasswd": {"realm": "hvdcloud", "path": str(folder / "passwords")}},
    }
    file = folder / "config.yml"
    file.write_text(json.dumps(document))
    return file


@contextlib.contextmanager
def _process(program: str, config: Path) -> Iterator[None]:
    # Whatever kills this process closes the pipe, which ends the registry too.
    script = '"$0" serve "$1" >/dev/null 2>&1 & cat; kill $!; wait'
    argv = ["sh", "-c", script, program, str(config)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, cwd="/", start_new_session=True) as process:
        try:
            yield
        finally:
            process.communicate()


@contextlib.contextmanager
def _container(api: Any, config: Path, cache: Path) -> Iterator[None]:
    """In this machine's network, with the same paths; it ends by itself after an hour if nothing does it before."""
    try:
        if inspected(api, IMAGE) is None:
            pull(api, IMAGE, progress=ignore)
    except HvdcloudError as error:
        raise NoRegistryError(f"there is no {PROGRAM} here, and {error.message}", hint=error.hint) from error
    folders = [str(config.parent), str(cache)]
    options = api.create_host_config(
        binds=[f"{folder}:{folder}" for folder in folders], network_mode="host", auto_remove=True
    )
    command = ["timeout", "3600", "registry", "serve", str(config)]
    user = f"{os.getuid()}:{os.getgid()}"
    made = api.create_container(IMAGE, entrypoint=command, user=user, volumes=folders, host_config=options)
    try:
        api.start(made["Id"])
        yield
    finally:
        api.remove_container(made["Id"], force=True, v=True)
