"""The caller's own address, as services on this machine tell it."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from hvdcloud.errors import NodeError, UsageError
from hvdcloud.providers.gce import ssh_access
from hvdcloud.providers.gce.ssh_access import ADDRESS_URL_VARIABLE, caller_source, check_reachable
from tests.support.http_server import Reply, answering


def test_an_address_that_cannot_be_found_out_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(lambda _: Reply(b"busy", status=503)) as url:
        monkeypatch.setenv(ADDRESS_URL_VARIABLE, url)
        with pytest.raises(UsageError, match="public address cannot be found out") as raised:
            caller_source("auto")
    assert "503" in raised.value.details
    assert "iap" in raised.value.hint


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        yield server


def test_a_port_that_answers_or_refuses_can_be_reached(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    check_reachable("127.0.0.1", port, source="198.51.100.7/32", given="auto")
    listener.close()
    check_reachable("127.0.0.1", port, source="198.51.100.7/32", given="auto")


@pytest.mark.parametrize("proxy", [False, True])
def test_a_port_that_does_not_answer_is_named_with_the_address_that_the_firewall_lets_in(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, *, proxy: bool
) -> None:
    monkeypatch.setattr(ssh_access, "REACH_SECONDS", 0.2)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128" if proxy else "")
    address = listener.getsockname()
    # Linux drops what comes once the backlog is full.
    waiting = [socket.socket() for _ in range(4)]
    for each in waiting:
        each.setblocking(False)
        each.connect_ex(address)
    with pytest.raises(NodeError) as raised:
        check_reachable(*address, source="198.51.100.7/32", given="auto")
    assert f"port {address[1]} of 127.0.0.1 cannot be reached from here: timed out" in raised.value.message
    assert "lets in 198.51.100.7/32, the address of this machine as the internet sees it" in raised.value.message
    assert ("through the proxy of HTTPS_PROXY" in raised.value.message) == proxy
    assert "gce.ssh.source: iap" in raised.value.hint
    for each in waiting:
        each.close()
