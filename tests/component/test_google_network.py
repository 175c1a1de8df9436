"""Google's APIs without a network, and credentials that cannot be used."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from hvdcloud.errors import NodeError
from hvdcloud.google.errors import ApiError
from hvdcloud.google.http import ApiCalls
from hvdcloud.image.publish.registry import auth_config
from hvdcloud.providers.gce.api.client import connect_client

USER = {"type": "authorized_user", "client_id": "a", "client_secret": "b", "refresh_token": "c"}
EXTERNAL = {
    "type": "external_account",
    "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/gh",
    "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
    "token_url": "https://sts.googleapis.com/v1/token",
}
WORKFORCE = {
    **USER,
    "type": "external_account_authorized_user",
    "audience": "//iam.googleapis.com/locations/global/workforcePools/p/providers/x",
    "token_url": "https://sts.googleapis.com/v1/oauthtoken",
}
IMPERSONATED = {
    "type": "impersonated_service_account",
    "service_account_impersonation_url": "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/"
    "sa@p.iam.gserviceaccount.com:generateAccessToken",
    "source_credentials": USER,
}


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where credentials are to be, on a machine whose network reaches nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = server.getsockname()[1]
    for name in ("https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{closed}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(ApiCalls, "reached", False)
    file = tmp_path / "key.json"
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    return file


@pytest.mark.parametrize("kind", ["user", "workforce", "impersonated", "external"])
def test_without_a_network_it_is_to_blame_within_seconds(kind: str, key: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("ey")
    external = {**EXTERNAL, "credential_source": {"file": str(tmp_path / "token")}}
    known = {"user": USER, "workforce": WORKFORCE, "impersonated": IMPERSONATED, "external": external}
    key.write_text(json.dumps(known[kind]))
    with pytest.raises((ApiError, NodeError)) as raised:
        connect_client(project="p").get_project()
    error = raised.value
    shown = error.as_user_error(doing="look for clusters") if isinstance(error, ApiError) else error
    assert isinstance(shown, NodeError)
    assert "cannot be reached" in shown.message
    assert "network" in shown.hint
    with pytest.raises(NodeError, match=r"no Google token for the registry .* cannot be reached"):
        auth_config("us-docker.pkg.dev")
