"""Debian's docker-registry: open, with a password, or with Google's access tokens as Artifact Registry has it."""

from __future__ import annotations

import base64
import contextlib
import datetime
import json
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
import requests

from tests.support.harness import until
from tests.support.http_server import Asked, Reply, answering

SERVICE = "registry.test"
ISSUER = "tokens.test"


def free_port() -> int:
    """One without a listener, on any address, which no connection gets by chance in the meantime."""
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    candidates = [port for port in range(20000, 65000) if not first <= port <= last]
    while True:
        if is_free(port := secrets.choice(candidates)):
            return port


def is_free(port: int) -> bool:
    """Whether nothing listens there, on any address."""
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("", port))
        return True
    return False


def share_layers(source: Path, target: Path) -> None:
    """Let the storage of a registry that does not run have the layers of another's, but none of its images.

    The next push of the same layers into the same repository finds that they exist.
    """
    for file in source.rglob("*"):
        place = target / file.relative_to(source)
        if file.is_file() and {"blobs", "_layers"} & set(file.parts) and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.hardlink_to(file)


@contextmanager
def running_registry(
    folder: Path, auth: dict[str, Any], *, addresses: Sequence[str] = ("127.0.0.1",), port: int | None = None
) -> Iterator[str]:
    """A registry on a port of its own; yields 127.0.0.1:PORT.

    Args:
        folder: holds the images, the log and the configuration.
        auth: the section of the configuration, or nothing.
        addresses: where to listen; a process for each, all on the same storage.
    """
    program = shutil.which("docker-registry")
    assert program, "docker-registry is not installed: make registry"
    port = port or free_port()
    with ExitStack() as stack:
        for address in addresses:
            configuration = {
                "version": 0.1,
                "log": {"level": "warn"},
                "storage": {"filesystem": {"rootdirectory": str(storage_of(folder))}},
                "http": {"addr": f"{address}:{port}"},
                **auth,
            }
            file = folder / f"config-{address}.yml"
            file.write_text(json.dumps(configuration))
            log = stack.enter_context((folder / f"log-{address}").open("wb"))
            process = subprocess.Popen([program, "serve", str(file)], stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.kill)
        for address in addresses:
            host = f"{address}:{port}"
            until(partial(answers, host), what=f"the registry at {host}")
        yield f"127.0.0.1:{port}"


@contextmanager
def closed_registry(folder: Path, user: str, password: str, **place: Any) -> Iterator[str]:
    """A registry for one user alone; yields 127.0.0.1:PORT.

    Args:
        place: `addresses` and `port`, as for `running_registry`.
    """
    bcrypt = pytest.importorskip("bcrypt", reason="paramiko brings it; without it no password file can be made")
    (folder / "htpasswd").write_text(f"{user}:{bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()}\n")
    section = {"auth": {"htpasswd": {"realm": "test", "path": str(folder / "htpasswd")}}}
    with running_registry(folder, section, **place) as host:
        yield host


def log_in(host: str, folder: Path, *, user: str, password: str) -> None:
    """What `docker login` writes, into a folder for DOCKER_CONFIG."""
    login = {"auths": {host: {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}}}
    (folder / "config.json").write_text(json.dumps(login))


def storage_of(folder: Path) -> Path:
    """Where the registry of a folder has its images."""
    return folder / "storage"


def answers(host: str) -> bool:
    """Whether this machine has a registry."""
    try:
        return requests.get(f"http://{host}/v2/", timeout=5).status_code in (200, 401)
    except requests.ConnectionError:
        return False


def digest_of(host: str, repository: str, tag: str) -> str:
    """The digest of an image at an open registry."""
    # Docker 29 pushes OCI's manifests.
    kinds = "application/vnd.docker.distribution.manifest.v2+json, application/vnd.oci.image.manifest.v1+json"
    url = f"http://{host}/v2/{repository}/manifests/{tag}"
    return requests.get(url, headers={"Accept": kinds}, timeout=300).headers["Docker-Content-Digest"]


class TokenServer:
    """Gives out the registry's own tokens for Google's (https://distribution.github.io/distribution/spec/auth/token/).

    Args:
        allowed: the actions (`pull`, `push`) that a Google access token may be used for; None: it is no such token.
    """

    def __init__(self, allowed: Callable[[str], Sequence[str] | None]) -> None:
        self._allowed = allowed
        self._key, self._certificate = _self_signed()

    def certificate(self) -> str:
        """What the registry is to trust, PEM."""
        from cryptography.hazmat.primitives.serialization import Encoding

        pem: bytes = self._certificate.public_bytes(Encoding.PEM)
        return pem.decode()

    def answer(self, authorization: str, query: str) -> tuple[int, dict[str, Any]]:
        """To `docker`, which sends user and password by HTTP's Basic scheme."""
        user, _, password = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        allowed = self._allowed(password) if user == "oauth2accesstoken" else None
        if allowed is None:
            return 401, {"errors": [{"code": "UNAUTHORIZED", "message": "authentication failed"}]}
        access = []
        for scope in parse_qs(query).get("scope", []):
            kind, name, actions = scope.split(":")
            granted = [action for action in actions.split(",") if action in allowed]
            access.append({"type": kind, "name": name, "actions": granted})
        return 200, {"token": self._signed(access), "expires_in": 300}

    def _signed(self, access: list[dict[str, Any]]) -> str:
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
        from cryptography.hazmat.primitives.serialization import Encoding

        der = base64.b64encode(self._certificate.public_bytes(Encoding.DER)).decode()
        now = int(time.time())
        claims = {
            "iss": ISSUER,
            "sub": "",
            "aud": SERVICE,
            "exp": now + 300,
            "nbf": now - 10,
            "iat": now,
            "jti": secrets.token_hex(8),
            "access": access,
        }
        text = ".".join(_base64url(json.dumps(part).encode()) for part in ({"alg": "RS256", "x5c": [der]}, claims))
        return f"{text}.{_base64url(self._key.sign(text.encode(), PKCS1v15(), hashes.SHA256()))}"


@contextmanager
def google_like_registry(
    folder: Path,
    allowed: Callable[[str], Sequence[str] | None],
    *,
    addresses: Sequence[str],
    port: int,
    token_port: int,
) -> Iterator[None]:
    """A registry that takes Google access tokens, and the server that it sends clients to for its own.

    Args:
        folder, addresses, port: as for `running_registry`.
        allowed: as for `TokenServer`.
        token_port: of the token server, which clients look for at 127.0.0.1.
    """
    tokens = TokenServer(allowed)
    bundle = folder / "tokens.pem"
    bundle.write_text(tokens.certificate())
    auth = {"realm": f"http://127.0.0.1:{token_port}/token", "service": SERVICE, "issuer": ISSUER}

    def answer(asked: Asked) -> Reply:
        status, content = tokens.answer(asked.headers.get("Authorization", ""), asked.query)
        return Reply(content, status=status)

    with ExitStack() as stack:
        for address in addresses:
            stack.enter_context(answering(answer, host=address, port=token_port))
        section = {"auth": {"token": {**auth, "rootcertbundle": str(bundle)}}}
        stack.enter_context(running_registry(folder, section, addresses=addresses, port=port))
        yield


def _self_signed() -> tuple[Any, Any]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, ISSUER)])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    return key, certificate


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
