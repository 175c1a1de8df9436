"""Pushes to a real registry."""

from __future__ import annotations

import io
import secrets
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.errors import ImageError
from hvdcloud.google import grants
from hvdcloud.google.registry_hosts import GOOGLE_REGISTRIES_VARIABLE
from hvdcloud.image.engine_reports import BuildEvent, ignore
from hvdcloud.image.publish.registry import digest_at_registry
from hvdcloud.image.publish.transfer import push
from tests.standins.google_account import Account, service_account
from tests.standins.registry import closed_registry, digest_of, log_in
from tests.support.gce_records import small_image

pytestmark = pytest.mark.engine

USER, PASSWORD = "someone", "hunter2-push"
TOKEN = "ya29.a-token-of-google"


@pytest.fixture(scope="module")
def private_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with closed_registry(tmp_path_factory.mktemp("private-registry"), USER, PASSWORD) as host:
        yield host


@pytest.fixture(scope="module")
def google_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One that takes a Google access token, and at any time only this one."""
    with closed_registry(tmp_path_factory.mktemp("google-registry"), "oauth2accesstoken", TOKEN) as host:
        yield host


@pytest.fixture
def tokens(google_registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    """A service account whose next token is the one that the registry takes."""
    monkeypatch.setenv(GOOGLE_REGISTRIES_VARIABLE, google_registry)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    # No credentials of the docker command's: nothing but the token may open the registry.
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with service_account(TOKEN) as account:
        account.write(tmp_path / "key.json")
        yield account


@pytest.fixture
def reference(engine: Any) -> Iterator[str]:
    """Of a small image, other than every earlier one."""
    with small_image(engine, f"hvdcloud/t-push:{secrets.token_hex(6)}") as reference:
        yield reference


def test_the_digest_is_the_registrys_own(registry: str, reference: str) -> None:
    events: list[BuildEvent] = []
    digest = push(reference, f"{registry}/hvdcloud/digits", progress=events.append)
    assert digest == digest_of(registry, "hvdcloud/digits", reference.partition(":")[2])
    assert any(event.kind == "layer" and event.text.endswith("Pushed") for event in events)


def test_a_push_without_credentials_says_how_to_log_in(private_registry: str, reference: str) -> None:
    with pytest.raises(ImageError, match=r"no basic auth credentials|unauthorized") as raised:
        push(reference, f"{private_registry}/hvdcloud/digits", progress=ignore)
    assert f"docker login {private_registry}" in raised.value.hint


def test_the_credentials_of_docker_login_are_used(
    private_registry: str, reference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(private_registry, tmp_path, user=USER, password=PASSWORD)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    assert push(reference, f"{private_registry}/hvdcloud/digits", progress=ignore).startswith("sha256:")


def test_an_image_for_another_processor_is_refused_before_a_byte_is_pushed(registry: str, engine: Any) -> None:
    reference = f"hvdcloud/t-push:{secrets.token_hex(6)}"
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as archive:
        member = tarfile.TarInfo("Dockerfile")
        content = b"FROM scratch\nCOPY Dockerfile /\n"
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    options = {"fileobj": io.BytesIO(context.getvalue()), "custom_context": True, "platform": "linux/arm64"}
    engine.images.build(tag=reference, **options)
    try:
        with pytest.raises(ImageError) as refused:
            push(reference, f"{registry}/hvdcloud/arm", progress=ignore, architecture="amd64")
        assert refused.value.message == f"the image {reference} is for arm64, and the nodes are amd64"
        assert refused.value.hint == "hvdcloud build --remote"
        assert digest_at_registry(f"{registry}/hvdcloud/arm:{reference.partition(':')[2]}") is None
        assert push(reference, f"{registry}/hvdcloud/arm", progress=ignore, architecture="arm64").startswith("sha256:")
    finally:
        engine.images.remove(engine.images.get(reference).id, force=True)


def test_googles_registries_get_a_new_token_and_nothing_is_written_down(
    google_registry: str, reference: str, tokens: Account, tmp_path: Path
) -> None:
    repository = f"{google_registry}/hvdcloud/digits"
    digest = push(reference, repository, progress=ignore)
    assert digest_at_registry(f"{repository}:{reference.partition(':')[2]}") == digest
    assert tokens.issued == [TOKEN, TOKEN]
    assert [path.name for path in tmp_path.iterdir()] == ["key.json"]


def test_a_token_that_ended_in_the_middle_of_a_push_is_replaced(
    google_registry: str, reference: str, tokens: Account
) -> None:
    tokens.tokens[:] = ["ended", TOKEN]
    assert push(reference, f"{google_registry}/hvdcloud/again", progress=ignore).startswith("sha256:")
    assert tokens.issued == ["ended", TOKEN]


def test_a_registry_that_refuses_right_after_setup_is_asked_again(
    google_registry: str, reference: str, tokens: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grants, "PAUSE_SECONDS", 0.1)
    tokens.tokens[:] = ["early", "early", "early", TOKEN]
    events: list[BuildEvent] = []
    settled_at = time.time() + 60
    digest = push(reference, f"{google_registry}/hvdcloud/young", progress=events.append, settled_at=settled_at)
    assert digest.startswith("sha256:")
    waits = [event.text for event in events if event.kind == "image"]
    assert waits == ["not allowed yet: what setup grants takes minutes to hold; trying again for 1 min"] * 2
