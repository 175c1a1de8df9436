"""A document beside an image at its registry: an OCI artifact that refers to the image by its digest.

It is found by the digest, for example with `oras discover REPOSITORY@DIGEST`. The engine can't push such
things, so requests go to the registry directly, with the credentials that a push has
(https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md).
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urljoin, urlsplit

from hvdcloud import engine
from hvdcloud.errors import CredentialsError, ImageError
from hvdcloud.image.publish import registry
from hvdcloud.image.publish.oci import OCI_INDEX, OCI_MANIFEST, descriptor, digest_of
from hvdcloud.json_values import mappings, parse_object

if TYPE_CHECKING:
    import requests

    Credentials = Callable[[requests.PreparedRequest], requests.PreparedRequest]

_DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
# All of them: registries answer that a manifest of another type than requested is missing.
_ANY = {"Accept": ", ".join((OCI_INDEX, OCI_MANIFEST, _DOCKER_LIST, _DOCKER_MANIFEST))}
# What a manifest names as its configuration if it has none.
_EMPTY = b"{}"
_EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
_TIMEOUT_SECONDS = 60
_ATTEMPTS = 5
# Docker Hub's name in references, and the host that answers.
_HUB = "docker.io"
_HUB_HOST = "registry-1.docker.io"


def attach(target: str, digest: str, content: bytes, *, media_type: str, title: str) -> str:
    """Puts a document beside an image; returns the digest (`sha256:…`) of the manifest that ties them together.

    The same document again changes nothing. Nothing that others put beside the image is lost.

    Args:
        target: where the image is: `HOST/PATH`, with or without a tag.
        digest: the image's, at that registry.
        media_type: the document's and the artifact's.
        title: a file name for the document.

    Raises:
        CredentialsError: there are no credentials, or the registry refuses them.
        ImageError: the registry takes no such artifacts, or can't be reached.
        NodeError: no engine, which knows what registries speak plain HTTP.
    """
    with contextlib.closing(_Repository(target)) as repository:
        manifest = {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "artifactType": media_type,
            "config": descriptor(_EMPTY, _EMPTY_TYPE),
            "layers": [descriptor(content, media_type) | {"annotations": {"org.opencontainers.image.title": title}}],
            "subject": repository.image(digest),
        }
        for blob in (_EMPTY, content):
            repository.upload(blob)
        body = json.dumps(manifest).encode()
        artifact = descriptor(body, OCI_MANIFEST)
        if not repository.put(artifact["digest"], body):
            repository.list_referrer(digest, artifact | {"artifactType": media_type})
    return str(artifact["digest"])


def try_push(target: str) -> None:
    """Makes sure that the registry would let a push to `target` in: an upload is begun, and given up again.

    Raises:
        CredentialsError: there are no credentials, or the registry refuses them.
        ImageError: there is no such repository, or the registry can't be reached.
        NodeError: no engine, which knows what registries speak plain HTTP.
    """
    with contextlib.closing(_Repository(target, connect=1)) as repository:
        repository.try_upload()


def referrers_tag(digest: str) -> str:
    """The tag of the index that lists what refers to an image, where the registry itself keeps no such list."""
    return digest.replace(":", "-")


class _Repository:
    """One repository of a registry, reached as `docker push` does.

    Args:
        connect: how many times it is tried again where no connection is made; the first time at once.
    """

    def __init__(self, target: str, *, connect: int = 3) -> None:
        import requests
        from docker.auth import resolve_repository_name
        from docker.utils import parse_repository_tag
        from requests.adapters import HTTPAdapter
        from urllib3.util import Retry

        self.host, self.path = resolve_repository_name(parse_repository_tag(target)[0])
        address = self.host
        if self.host == _HUB:
            address = _HUB_HOST
            self.path = self.path if "/" in self.path else f"library/{self.path}"
        self._secure = not _plain_http(self.host)
        self._origin = f"{'https' if self._secure else 'http'}://{address}"
        self._base = f"{self._origin}/v2/{self.path}/"
        self._credentials: Credentials = _no_credentials
        self._session = requests.Session()
        # This machine's own registry is not behind a proxy.
        self._session.trust_env = not _is_this_machine(self.host)
        # Everything that is sent may be sent twice: what is stored is named by its content.
        busy = (429, 502, 503, 504)
        again = Retry(
            total=3,
            connect=connect,
            backoff_factor=0.5,
            status_forcelist=busy,
            allowed_methods=None,
            raise_on_status=False,
        )
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(max_retries=again))

    def close(self) -> None:
        self._session.close()

    def image(self, digest: str) -> dict[str, Any]:
        """The descriptor of a pushed image."""
        answer = self._ask("GET", f"manifests/{digest}", headers=_ANY)
        media_type = answer.headers.get("Content-Type", _DOCKER_MANIFEST).partition(";")[0]
        return {"mediaType": media_type, "digest": digest, "size": len(answer.content)}

    def try_upload(self) -> None:
        """Begins to send a blob, and sends nothing."""
        place = self._begin_upload()
        # To end it may need another permission than to begin it; the registry drops unfinished uploads by itself.
        with contextlib.suppress(CredentialsError, ImageError):
            self._ask("DELETE", place, fine=(204,))

    def _begin_upload(self) -> str:
        started = self._ask("POST", "blobs/uploads/", fine=(202,))
        return urljoin(started.url, started.headers.get("Location", ""))

    def upload(self, content: bytes) -> None:
        """Sends a blob in one piece."""
        place = self._begin_upload()
        place += ("&" if "?" in place else "?") + urlencode({"digest": digest_of(content)})
        self._ask("PUT", place, body=content, headers={"Content-Type": "application/octet-stream"}, fine=(201,))

    def put(self, digest: str, manifest: bytes) -> bool:
        """Stores an artifact's manifest; returns whether the registry lists it as one that refers to an image."""
        headers = {"Content-Type": OCI_MANIFEST}
        answer = self._ask("PUT", f"manifests/{digest}", body=manifest, headers=headers, fine=(201,))
        return "OCI-Subject" in answer.headers

    def list_referrer(self, digest: str, artifact: Mapping[str, Any]) -> None:
        """Adds an artifact to the list of those that refer to an image, which clients keep for registries before 1.1.

        It is an index that has the image's digest as its tag.
        """
        for _ in range(_ATTEMPTS):
            index, headers = self._referrers(digest)
            listed: list[Any] = index["manifests"]
            if any(entry.get("digest") == artifact["digest"] for entry in mappings(listed)):
                return
            body = json.dumps({**index, "manifests": [*listed, artifact]}).encode()
            tag = f"manifests/{referrers_tag(digest)}"
            # 412: another process was faster. Registries that ignore the condition are asked again above.
            self._ask("PUT", tag, body=body, headers={"Content-Type": OCI_INDEX, **headers}, fine=(201, 412))
        raise ImageError(
            f"{self.host} does not keep what is added to {self.path}:{referrers_tag(digest)}, the list of what refers "
            "to the image",
            hint="hvdcloud push tries again",
        )

    def _referrers(self, digest: str) -> tuple[dict[str, Any], dict[str, str]]:
        """The list as it is, and the condition under which it may be replaced."""
        tag = referrers_tag(digest)
        answer = self._ask("GET", f"manifests/{tag}", headers=_ANY, fine=(200, 404))
        if answer.status_code == 404:
            return {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": []}, {}
        index = parse_object(answer.content)
        if index is not None and isinstance(index.get("manifests"), list):
            etag = answer.headers.get("ETag")
            return index, {"If-Match": etag} if etag else {}
        raise ImageError(
            f"{self.host}/{self.path}:{tag} is not a list of what refers to the image, so nothing can be added to it",
            hint=f"see what it is and who pushed it; without the tag {tag} `hvdcloud push` makes a new list",
        )

    def _ask(
        self,
        method: str,
        where: str,
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        fine: Sequence[int] = (200,),
    ) -> requests.Response:
        url = urljoin(self._base, where)
        answer = self._send(method, url, body, headers)
        if answer.status_code == 401:
            self._log_in(answer.headers.get("WWW-Authenticate", ""))
            answer = self._send(method, url, body, headers)
        if answer.status_code in fine:
            return answer
        what = f"{method} {urlsplit(url).path}"
        said = f"{self.host} answers {answer.status_code} to {what}: {_reason(answer)}"
        if answer.status_code in (401, 403):
            raise CredentialsError(said, hint=registry.role_hint(self.host))
        raise ImageError(said, hint="the image itself is pushed; hvdcloud push tries again")

    def _send(self, method: str, url: str, body: bytes, headers: Mapping[str, str] | None) -> requests.Response:
        # Uploads may go to another server, which has its own way to know us.
        auth = self._credentials if url.startswith(f"{self._origin}/") else _no_credentials
        return self._request(method, url, data=body, headers=dict(headers or {}), auth=auth)

    def _request(self, method: str, url: str, **arguments: Any) -> requests.Response:
        from requests.exceptions import RequestException, SSLError

        try:
            return self._session.request(method, url, timeout=_TIMEOUT_SECONDS, **arguments)
        except SSLError as error:
            raise ImageError(
                f"{urlsplit(url).netloc} has a TLS certificate that is not trusted here: {error}",
                hint=f"name its CA in REQUESTS_CA_BUNDLE; if {self.host} speaks plain HTTP, add it to "
                "insecure-registries in the engine's /etc/docker/daemon.json",
            ) from error
        except RequestException as error:
            raise ImageError(
                f"{urlsplit(url).netloc} does not answer {method} {urlsplit(url).path}: {error}",
                hint=f"check that {self.host} can be reached from here; then `hvdcloud push` tries again",
            ) from error

    def _log_in(self, challenge: str) -> None:
        """Does what the registry asks for (https://distribution.github.io/distribution/spec/auth/token/)."""
        from requests.auth import HTTPBasicAuth
        from requests.utils import parse_dict_header

        scheme, _, parameters = challenge.partition(" ")
        user, password, identity = self._login()
        if scheme.lower() == "basic" and user:
            self._credentials = HTTPBasicAuth(user, password)
        elif scheme.lower() == "bearer":
            asked = parse_dict_header(parameters)
            self._credentials = _bearer(self._token(asked, user=user, password=password, identity=identity))

    def _token(self, asked: Mapping[str, str], *, user: str, password: str, identity: str) -> str:
        from requests.auth import HTTPBasicAuth

        realm = asked.get("realm", "")
        if urlsplit(realm).scheme not in (("https",) if self._secure else ("https", "http")):
            raise ImageError(
                f"{self.host} sends us to {realm or 'nowhere'} for a token, where the password would be read by others",
                hint=f"ask the administrator of {self.host}",
            )
        wanted = {"service": asked.get("service", ""), "scope": f"repository:{self.path}:pull,push"}
        if identity:
            grant = {"grant_type": "refresh_token", "client_id": "hvdcloud", "refresh_token": identity}
            answer = self._request("POST", realm, data={**wanted, **grant}, auth=_no_credentials)
        else:
            auth = HTTPBasicAuth(user, password) if user else _no_credentials
            answer = self._request("GET", realm, params=wanted, auth=auth)
        found: Mapping[str, Any] = {}
        if answer.status_code == 200:
            found = parse_object(answer.content) or {}
        token = found.get("token") or found.get("access_token")
        if not token:
            message = f"{urlsplit(realm).netloc} gives no token for {self.host}/{self.path}: {_reason(answer)}"
            raise CredentialsError(message, hint=registry.role_hint(self.host))
        return str(token)

    def _login(self) -> tuple[str, str, str]:
        """User, password and identity token, each "" if there is none: the same as for a push."""
        from docker.auth import load_config
        from docker.errors import DockerException

        try:
            found = registry.auth_config(self.host) or load_config().resolve_authconfig(self.host) or {}
        except DockerException as error:
            raise registry.unreadable_credentials(self.host, error) from error
        # Credential helpers' answers have other names for the same.
        known = {str(key).lower(): str(value or "") for key, value in found.items()}
        return known.get("username", ""), known.get("password", ""), known.get("identitytoken", "")


def _no_credentials(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """For requests, which would otherwise read ~/.netrc."""
    return request


def _bearer(token: str) -> Credentials:
    def credentials(request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {token}"
        return request

    return credentials


def _reason(answer: requests.Response) -> str:
    """The registry's own words (`errors` in its answer), else HTTP's."""
    with contextlib.suppress(KeyError, TypeError, IndexError):
        error = (parse_object(answer.content) or {})["errors"][0]
        return f"{error['code']}: {error['message']}"
    return str(answer.reason)


def _plain_http(host: str) -> bool:
    """Whether the engine, which pushed the image there, does so without TLS.

    https://docs.docker.com/reference/cli/dockerd/#insecure-registries
    """
    if _is_this_machine(host):
        return True
    if host.endswith("-docker.pkg.dev"):
        return False
    with contextlib.closing(engine.connect()) as client:
        known: Mapping[str, Any] = client.info().get("RegistryConfig") or {}
    configured = (known.get("IndexConfigs") or {}).get(host)
    if configured is not None:
        return not configured["Secure"]
    address = _address(host)
    networks = [ipaddress.ip_network(text) for text in known.get("InsecureRegistryCIDRs") or []]
    return address is not None and any(address in network for network in networks)


def _is_this_machine(host: str) -> bool:
    address = _address(host)
    return _name(host) == "localhost" or (address is not None and address.is_loopback)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(_name(host))
    return None


def _name(host: str) -> str:
    """Without the port: `mirror.lab:5000`, `[::1]:5000`."""
    return urlsplit(f"//{host}").hostname or host
