"""Tokens for Google's registries, from a server on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvdcloud.errors import CredentialsError, ExitCode
from hvdcloud.image.publish.registry import auth_config
from tests.standins.google_account import service_account


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
