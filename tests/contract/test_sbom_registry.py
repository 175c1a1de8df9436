"""What an image holds, asked of real images, and its SBOM beside it at real registries."""

from __future__ import annotations

import base64
import io
import json
import secrets
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from hvdcloud.errors import CredentialsError, ImageError
from hvdcloud.google.registry_hosts import GOOGLE_REGISTRIES_VARIABLE
from hvdcloud.image.engine_stream import ignore
from hvdcloud.image.publish import sbom
from hvdcloud.image.publish.oci import OCI_INDEX, OCI_MANIFEST
from hvdcloud.image.publish.push import push
from hvdcloud.image.publish.referrers import attach, referrers_tag
from tests.standins.google_account import service_account
from tests.standins.registry import free_port, google_like_registry, running_registry
from tests.support.harness import until
from tests.support.http_server import Asked, Reply, answering

pytestmark = pytest.mark.engine

USER, PASSWORD = "someone", "hunter2-sbom"
DOCUMENT = b'{"bomFormat": "CycloneDX", "specVersion": "1.6"}\n'


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_registry(tmp_path_factory.mktemp("registry"), {}) as host:
        yield host


@pytest.fixture(scope="module")
def reference(engine: Any) -> Iterator[str]:
    """A small image of one file, other than every earlier one."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        member = tarfile.TarInfo("data")
        member.size = 1000
        archive.addfile(member, io.BytesIO(secrets.token_bytes(1000)))
    reference = f"hvdcloud/t-sbom:{secrets.token_hex(6)}"
    repository, _, tag = reference.partition(":")
    engine.api.import_image_from_data(data.getvalue(), repository=repository, tag=tag)
    image = engine.images.get(reference)
    yield reference
    engine.images.remove(image.id, force=True)


class Pushed:
    """An image at a registry, in a repository of its own."""

    def __init__(self, host: str, reference: str, *, through: str = "") -> None:
        path = f"hvdcloud/t-{secrets.token_hex(4)}"
        self.digest = push(reference, f"{host}/{path}", progress=ignore)
        self.target = f"{through or host}/{path}:{reference.partition(':')[2]}"
        self._url = f"http://{host}/v2/{path}"

    def attach(self, content: bytes = DOCUMENT) -> str:
        return attach(self.target, self.digest, content, media_type=sbom.MEDIA_TYPE, title="sbom.cdx.json")

    def manifest(self, reference: str, *, accept: str = OCI_MANIFEST) -> Any:
        answer = requests.get(f"{self._url}/manifests/{reference}", headers={"Accept": accept}, timeout=10)
        return answer.json() if answer.ok else None

    def blob(self, digest: str) -> bytes:
        return requests.get(f"{self._url}/blobs/{digest}", timeout=10).content

    def listed(self) -> list[Any]:
        index = self.manifest(referrers_tag(self.digest), accept=OCI_INDEX)
        found: list[Any] = index["manifests"]
        return found

    def put_list(self, content: Any, media_type: str = OCI_INDEX) -> None:
        """What another client stores under the list's tag."""
        url = f"{self._url}/manifests/{referrers_tag(self.digest)}"
        answer = requests.put(url, data=json.dumps(content), headers={"Content-Type": media_type}, timeout=10)
        assert answer.status_code == 201, answer.text


@pytest.fixture
def pushed(registry: str, reference: str) -> Pushed:
    return Pushed(registry, reference)


# --- the registry --------------------------------------------------------------------------------------------------


def test_the_artifact_holds_the_document_and_refers_to_the_image(pushed: Pushed) -> None:
    digest = pushed.attach()
    manifest = pushed.manifest(digest)
    assert manifest["artifactType"] == "application/vnd.cyclonedx+json"
    assert manifest["config"]["mediaType"] == "application/vnd.oci.empty.v1+json"
    assert pushed.blob(manifest["config"]["digest"]) == b"{}"
    (layer,) = manifest["layers"]
    assert (layer["mediaType"], layer["size"]) == ("application/vnd.cyclonedx+json", len(DOCUMENT))
    assert layer["annotations"] == {"org.opencontainers.image.title": "sbom.cdx.json"}
    assert pushed.blob(layer["digest"]) == DOCUMENT
    image = pushed.manifest(pushed.digest, accept=manifest["subject"]["mediaType"])
    assert (manifest["subject"]["digest"], image["mediaType"]) == (pushed.digest, manifest["subject"]["mediaType"])


def test_a_registry_without_referrers_gets_the_list_that_clients_look_for(pushed: Pushed) -> None:
    digest = pushed.attach()
    assert referrers_tag(pushed.digest) == f"sha256-{pushed.digest.partition(':')[2]}"
    (entry,) = pushed.listed()
    assert (entry["digest"], entry["mediaType"]) == (digest, OCI_MANIFEST)
    assert entry["artifactType"] == "application/vnd.cyclonedx+json"


def test_the_same_document_again_changes_nothing(pushed: Pushed) -> None:
    first, again = pushed.attach(), pushed.attach()
    assert first == again
    assert [entry["digest"] for entry in pushed.listed()] == [first]


def test_what_others_put_beside_the_image_stays(pushed: Pushed) -> None:
    theirs = pushed.attach(b"a signature, say")
    # Theirs has a field that ours has not.
    (entry,) = pushed.listed()
    signed = entry | {"annotations": {"signed": "by us"}}
    pushed.put_list({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [signed], "annotations": {"a": "b"}})
    ours = pushed.attach()
    assert [entry["digest"] for entry in pushed.listed()] == [theirs, ours]
    assert pushed.listed()[0] == signed
    assert pushed.manifest(referrers_tag(pushed.digest), accept=OCI_INDEX)["annotations"] == {"a": "b"}


def test_a_tag_that_is_no_list_is_left_alone(pushed: Pushed) -> None:
    digest = pushed.attach()
    pushed.put_list(pushed.manifest(digest), OCI_MANIFEST)
    with pytest.raises(ImageError, match="is not a list of what refers to the image"):
        pushed.attach(b"another")
    assert pushed.manifest(referrers_tag(pushed.digest)) == pushed.manifest(digest)


@contextmanager
def in_front(host: str, meddle: Callable[[Asked, Callable[[], Reply]], Reply | None]) -> Iterator[str]:
    """A server that hands everything on to the registry, but for what `meddle` does with it; yields its host."""

    def answer(asked: Asked) -> Reply | None:
        def handed_on() -> Reply:
            url = f"http://{host}{asked.path}" + (f"?{asked.query}" if asked.query else "")
            headers = {name: value for name, value in asked.headers.items() if name != "Content-Length"}
            done = requests.request(asked.method, url, data=asked.body, headers=headers, timeout=10)
            kept = [name for name in ("Location", "Content-Type", "ETag") if name in done.headers]
            return Reply(done.content, done.status_code, {name: done.headers[name] for name in kept})

        return meddle(asked, handed_on)

    with answering(answer) as url:
        yield url.removeprefix("http://")


def test_a_registry_that_lists_referrers_itself_gets_no_list(registry: str, reference: str) -> None:
    def modern(asked: Asked, handed_on: Callable[[], Reply]) -> Reply:
        reply = handed_on()
        if asked.method == "PUT" and "/manifests/" in asked.path:
            subject = json.loads(asked.body)["subject"]["digest"]
            return Reply(reply.content, reply.status, {**reply.headers, "OCI-Subject": subject})
        return reply

    with in_front(registry, modern) as host:
        pushed = Pushed(registry, reference, through=host)
        assert pushed.manifest(pushed.attach())["subject"]["digest"] == pushed.digest
    assert pushed.manifest(referrers_tag(pushed.digest), accept=OCI_INDEX) is None


def test_a_list_that_another_client_replaced_at_the_same_time_gets_both(registry: str, reference: str) -> None:
    pushed = Pushed(registry, reference)
    theirs = pushed.attach(b"a signature, say")
    before = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": pushed.listed()}
    lost: list[bytes] = []

    def racing(asked: Asked, handed_on: Callable[[], Reply]) -> Reply:
        reply = handed_on()
        if asked.method == "PUT" and asked.path.endswith(referrers_tag(pushed.digest)) and not lost:
            lost.append(asked.body)
            pushed.put_list(before)
        return reply

    with in_front(registry, racing) as host:
        repository = pushed.target.partition("/")[2]
        ours = attach(f"{host}/{repository}", pushed.digest, DOCUMENT, media_type=sbom.MEDIA_TYPE, title="sbom")
    assert len(lost) == 1
    assert [entry["digest"] for entry in pushed.listed()] == [theirs, ours]


def test_a_registry_that_takes_no_artifacts_says_so_in_its_own_words(registry: str, reference: str) -> None:
    def refusing(asked: Asked, handed_on: Callable[[], Reply]) -> Reply:
        if asked.method == "PUT" and b"artifactType" in asked.body:
            return Reply({"errors": [{"code": "MANIFEST_INVALID", "message": "unknown artifact"}]}, status=400)
        return handed_on()

    words = r"answers 400 .*MANIFEST_INVALID: unknown artifact"
    with in_front(registry, refusing) as host, pytest.raises(ImageError, match=words):
        Pushed(registry, reference, through=host).attach()


def test_a_registry_that_is_overloaded_is_asked_again(registry: str, reference: str) -> None:
    refused: list[str] = []

    def overloaded(asked: Asked, handed_on: Callable[[], Reply]) -> Reply:
        if asked.path not in refused:
            refused.append(asked.path)
            return Reply(status=503)
        return handed_on()

    with in_front(registry, overloaded) as host:
        pushed = Pushed(registry, reference, through=host)
        digest = pushed.attach()
    assert [entry["digest"] for entry in pushed.listed()] == [digest]
    assert len(refused) >= 5


def test_a_registry_that_is_down_is_named() -> None:
    host = f"127.0.0.1:{free_port()}"
    with pytest.raises(ImageError, match=f"{host} does not answer GET") as raised:
        attach(f"{host}/hvdcloud/digits:1", "sha256:" + "0" * 64, b"", media_type=sbom.MEDIA_TYPE, title="sbom")
    assert host in raised.value.hint


def test_an_image_that_is_not_at_the_registry_gets_nothing(registry: str) -> None:
    with pytest.raises(ImageError, match="answers 404"):
        attach(f"{registry}/hvdcloud/never", "sha256:" + "0" * 64, b"", media_type=sbom.MEDIA_TYPE, title="sbom")


# --- credentials ---------------------------------------------------------------------------------------------------


def test_the_credentials_of_docker_login_are_used(
    reference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bcrypt = pytest.importorskip("bcrypt", reason="paramiko brings it; without it no password file can be made")
    (tmp_path / "htpasswd").write_text(f"{USER}:{bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()}\n")
    auth = {"auth": {"htpasswd": {"realm": "test", "path": str(tmp_path / "htpasswd")}}}
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with running_registry(tmp_path, auth) as host:
        login = {"auths": {host: {"auth": base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()}}}
        (tmp_path / "config.json").write_text(json.dumps(login))
        pushed = Pushed(host, reference)
        assert pushed.attach().startswith("sha256:")
        (tmp_path / "config.json").write_text("{}")
        with pytest.raises(CredentialsError, match="answers 401") as raised:
            pushed.attach()
    assert raised.value.hint == f"docker login {host}"


class Google:
    """A registry that takes access tokens of one service account."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = tmp_path
        self._port, self._token_port = free_port(), free_port()
        self.host = f"127.0.0.1:{self._port}"
        monkeypatch.setenv(GOOGLE_REGISTRIES_VARIABLE, self.host)
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))

    @contextmanager
    def running(self, allowed: Callable[[str], Sequence[str] | None], *tokens: str) -> Iterator[Any]:
        """Yields the token server. `tokens`: what the service account gets, one after the other."""
        ports = {"port": self._port, "token_port": self._token_port}
        with service_account(*tokens) as account:
            account.write(self._folder / "key.json")
            with google_like_registry(self._folder, allowed, addresses=["127.0.0.1"], **ports) as server:
                yield server


@pytest.fixture
def google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Google:
    return Google(tmp_path, monkeypatch)


def test_google_tokens_are_exchanged_for_the_registrys_own(google: Google, reference: str) -> None:
    with google.running(lambda _: ("pull", "push"), "ya29.one", "ya29.two") as tokens:
        pushed = Pushed(google.host, reference)
        tokens.granted.clear()
        digest = pushed.attach()
    assert digest.startswith("sha256:")
    assert {actions for actions, _ in tokens.granted} == {("pull", "push")}


def test_a_role_that_may_only_read_is_a_matter_of_roles(google: Google, reference: str) -> None:
    allowed = {"ya29.writes": ("pull", "push"), "ya29.reads": ("pull",)}
    with google.running(allowed.get, "ya29.writes", "ya29.reads"):
        pushed = Pushed(google.host, reference)
        with pytest.raises(CredentialsError, match=r"answers 401 to POST .*/blobs/uploads/") as raised:
            pushed.attach()
    assert "roles/artifactregistry.writer" in raised.value.hint


def test_a_token_that_the_token_server_refuses_is_a_matter_of_credentials(google: Google, reference: str) -> None:
    allowed = {"ya29.good": ("pull", "push")}
    with google.running(allowed.get, "ya29.good", "ya29.bad"):
        pushed = Pushed(google.host, reference)
        with pytest.raises(CredentialsError, match=r"gives no token for .*authentication failed"):
            pushed.attach()


# --- images --------------------------------------------------------------------------------------------------------


def test_an_image_says_what_is_in_all_its_pythons(image: str, engine: Any) -> None:
    def containers() -> set[str]:
        made = engine.api.containers(all=True, filters={"ancestor": image})
        return {each["Id"] for each in made if "command -v python3" in each["Command"]}

    before = containers()
    found = sbom.contents(image)
    by_name = {package.name: package for package in found.packages}
    assert {"torch", "horovod", "numpy", "scikit-learn", "google-cloud-storage"} <= set(by_name)
    assert by_name["torch"].version == "2.13.0+cpu"
    assert by_name["scikit-learn"].places[0].startswith("/opt/requirements/")
    assert by_name["horovod"].places[0].startswith("/opt/venv/")
    assert by_name["google-cloud-storage"].places[0].startswith("/opt/hvdcloud/venv/")
    attributes = engine.images.get(image).attrs
    assert found.image_id == attributes["Id"]
    assert found.created.isoformat()[:19] == attributes["Created"][:19]
    assert sbom.document(found, name="x") == sbom.document(sbom.contents(image), name="x")
    until(lambda: not containers() - before, seconds=10, what="its containers to be gone")


@pytest.fixture
def changed(image: str, engine: Any) -> Iterator[Callable[[str], str]]:
    """Makes an image like `image` but for what a shell command did to it."""
    made: list[str] = []

    def call(command: str) -> str:
        container = engine.containers.create(image, ["-c", command], entrypoint="sh")
        try:
            container.start()
            assert container.wait()["StatusCode"] == 0, container.logs()
            made.append(container.commit(changes=["USER nobody", 'ENTRYPOINT ["false"]']).id)
        finally:
            container.remove(force=True)
        return made[-1]

    yield call
    for found in made:
        engine.images.remove(found, force=True)


def test_nothing_of_the_image_is_run_and_what_is_private_is_read(changed: Callable[[str], str]) -> None:
    trap = "print('import os; os._exit(9)', file=open(site.getsitepackages()[0] + '/trap.pth', 'w'))"
    private = "/opt/private/secretive-1.0.dist-info"
    made = changed(
        f'set -e; python -c "import site; {trap}"; ! python -c pass; mkdir -p {private};'
        f"printf 'Name: secretive\\nVersion: 1.0\\n' > {private}/METADATA; chown -R nobody {private};"
        f"chmod -R go= {private}"
    )
    assert "secretive" in {package.name for package in sbom.contents(made).packages}


def test_an_image_without_python_says_what_it_lacks() -> None:
    with pytest.raises(ImageError, match="its Python failed") as raised:
        sbom.contents("debian:bookworm-slim")
    assert "python3: not found" in raised.value.details
    assert "debian:bookworm-slim" in raised.value.hint


def test_an_image_that_is_not_there_has_no_contents() -> None:
    with pytest.raises(ImageError, match="the Python packages of hvdcloud/t-sbom:never can't be listed"):
        sbom.contents("hvdcloud/t-sbom:never")
