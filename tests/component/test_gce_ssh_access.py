"""The caller's own address, as services on this machine tell it."""

from __future__ import annotations

from contextlib import AbstractContextManager

import pytest

from hvdcloud.errors import UsageError
from hvdcloud.providers.gce.ssh_access import (
    ADDRESS_URL_VARIABLE,
    caller_source,
)
from tests.support.http_server import Reply, answering


def address_service(content: bytes, *, status: int = 200) -> AbstractContextManager[str]:
    return answering(lambda _: Reply(content, status=status))


def test_auto_is_the_callers_own_address_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with address_service(b"198.51.100.7\n") as url:
        monkeypatch.setenv(ADDRESS_URL_VARIABLE, url)
        assert caller_source("auto") == "198.51.100.7/32"


def test_an_address_that_cannot_be_found_out_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    with address_service(b"busy", status=503) as url:
        monkeypatch.setenv(ADDRESS_URL_VARIABLE, url)
        with pytest.raises(UsageError, match="public address cannot be found out") as raised:
            caller_source("auto")
    assert "503" in raised.value.details
    assert "iap" in raised.value.hint
