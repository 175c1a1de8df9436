"""Which registries are Google's, the token for them, and references by digest."""

from __future__ import annotations

import pytest

from hvdcloud.google.registry_hosts import GOOGLE_REGISTRIES_VARIABLE, google_registry
from hvdcloud.image.publish.registry import host_of


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
        ("evil.com#x.gcr.io/lab/digits", "evil.com#x.gcr.io", False),
        ("evil.com?us-docker.pkg.dev/lab/digits", "evil.com?us-docker.pkg.dev", False),
        ("evil.com\\@us-docker.pkg.dev/lab/digits", "evil.com\\@us-docker.pkg.dev", False),
        ("evil.com:443#us-docker.pkg.dev/lab/digits", "evil.com:443#us-docker.pkg.dev", False),
    ],
)
def test_only_googles_registries_get_a_google_token(
    reference: str, host: str, googles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(GOOGLE_REGISTRIES_VARIABLE, "mirror.lab:5000, other.lab")
    assert host_of(reference) == host
    assert google_registry(host) is googles
