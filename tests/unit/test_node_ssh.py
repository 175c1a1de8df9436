"""What ssh prints when a connection to a node ends, in words that a user understands."""

from __future__ import annotations

import pytest

from hvdcloud.node.mesh.ssh import connection_error


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("client_loop: send disconnect: Broken pipe", "its connection broke"),
        ("Connection to digits-2 closed by remote host.", "its connection broke"),
        ("Connection reset by 10.0.0.3 port 2222", "its connection broke"),
        ("Connection closed by 10.0.0.3 port 2222", "its connection broke"),
        ("Read from remote host digits-2: Connection reset by peer", "its connection broke"),
        ("kex_exchange_identification: Connection closed by remote host", "its connection broke"),
        ("mux_client_read_packet_timeout: read header failed: Broken pipe", "its connection broke"),
        ("Timeout, server digits-1 not responding.", "it no longer answers"),
        (
            "ssh: connect to host digits-1 port 2222: Connection timed out",
            "it cannot be reached: Connection timed out",
        ),
        ("ssh: connect to host 10.0.0.3 port 2222: No route to host", "it cannot be reached: No route to host"),
        (
            "ssh: Could not resolve hostname digits-9: Name or service not known",
            "it cannot be reached: Name or service not known",
        ),
    ],
)
def test_an_error_of_the_connection_is_said_in_plain_words(printed: str, said: str) -> None:
    assert connection_error(printed) == said


@pytest.mark.parametrize(
    "printed", ["OSError: [Errno 28] No space left on device", "Host key verification failed.", "Killed", ""]
)
def test_what_the_agent_or_ssh_says_of_something_else_is_kept(printed: str) -> None:
    assert connection_error(printed) == printed
