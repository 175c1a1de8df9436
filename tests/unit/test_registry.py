"""Which registries are Google's, the token for them, and references by digest."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvdcloud.errors import CredentialsError, ExitCode
from hvdcloud.image.publish.registry import (
    GOOGLE_REGISTRIES_VARIABLE,
    auth_config,
    google_registry,
    host_of,
    pinned,
    target_of,
)
from tests.standins.google_account import service_account

DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("reference", "host", "googles"),
    [
        ("us-central1-docker.pkg.dev/lab/hvdcloud/digits:1", "us-central1-docker.pkg.dev", True),
        ("gcr.io/lab/digits", "gcr.io", True),
        ("eu.gcr.io/lab/digits", "eu.gcr.io", True),
        ("mirror.lab:5000/digits:1", "mirror.lab:5000", True),
        ("127.0.0.1:5000/hvdcloud/digits", "127.0.0.1:5000", False),
        ("someone/digits:1", "docker.io", False),
        ("evil-gcr.io/lab/digits", "evil-gcr.io", False),
        ("docker.pkg.dev.evil.com/lab/digits", "docker.pkg.dev.evil.com", False),
    ],
)
def test_only_googles_registries_get_a_google_token(
    reference: str, host: str, googles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(GOOGLE_REGISTRIES_VARIABLE, "mirror.lab:5000, other.lab")
    assert host_of(reference) == host
    assert google_registry(host) is googles


def test_a_reference_by_digest_has_no_tag() -> None:
    assert pinned("127.0.0.1:5000/hvdcloud/digits:v7", DIGEST) == f"127.0.0.1:5000/hvdcloud/digits@{DIGEST}"
    assert pinned("gcr.io/lab/digits", DIGEST) == f"gcr.io/lab/digits@{DIGEST}"


def test_the_repositorys_own_tag_wins() -> None:
    assert target_of("hvdcloud/project:abc", "gcr.io/lab/digits") == "gcr.io/lab/digits:abc"
    assert target_of("hvdcloud/project:abc", "127.0.0.1:5000/digits:v7") == "127.0.0.1:5000/digits:v7"
    assert target_of("hvdcloud/project", "gcr.io/lab/digits") == "gcr.io/lab/digits:latest"


def test_every_push_gets_a_token_that_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    with service_account("first", "second") as account:
        account.write(tmp_path / "key.json")
        assert auth_config("gcr.io") == {"username": "oauth2accesstoken", "password": "first"}
        assert auth_config("gcr.io") == {"username": "oauth2accesstoken", "password": "second"}
        assert auth_config("127.0.0.1:5000") is None
    assert account.issued == ["first", "second"]


def test_credentials_that_give_no_token_say_how_to_log_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    with pytest.raises(CredentialsError, match=r"no Google token for the registry gcr\.io: .*key\.json"):
        auth_config("gcr.io")
    with service_account() as account:
        account.write(tmp_path / "key.json")
        with pytest.raises(CredentialsError, match="account not found") as raised:
            auth_config("gcr.io")
    assert raised.value.hint.startswith("name another key in GOOGLE_APPLICATION_CREDENTIALS, or unset it")
    assert raised.value.code == ExitCode.CREDENTIALS
