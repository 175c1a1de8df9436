"""The words after `hvdcloud forward`."""

from __future__ import annotations

import pytest

from hvdcloud.errors import UsageError
from hvdcloud.lifecycle.forward import parse
from hvdcloud.remote.forward import Ports


@pytest.mark.parametrize(
    ("words", "ports", "node"),
    [
        (["6006"], [(6006, 6006)], "0"),
        (["6006", "1"], [(6006, 6006)], "1"),
        (["16006:6006", "digits-1"], [(16006, 6006)], "digits-1"),
        (["6006", "8889:8888", "0"], [(6006, 6006), (8889, 8888)], "0"),
        (["8080:80"], [(8080, 80)], "0"),
        (["1", "6006"], [(6006, 6006)], "1"),
    ],
)
def test_ports_and_the_node_are_told_apart(words: list[str], ports: list[tuple[int, int]], node: str) -> None:
    assert parse(words) == ([Ports(local=local, remote=remote) for local, remote in ports], node)


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        ([], "forward needs a port", "hvdcloud forward 6006"),
        (["1"], "forward needs a port; 1 alone is a node", "hvdcloud forward 8001:1"),
        (["80"], "forward needs a port; 80 alone is a node", "hvdcloud forward 8080:80"),
        (["digits-1"], "forward needs a port; digits-1 alone is a node", "hvdcloud forward 6006"),
        (["6006", "1", "2"], "1 and 2 are two nodes", "one hvdcloud forward for each node"),
        (["6006", "6006:80"], "port 6006 of this machine is named twice", "LOCAL:REMOTE"),
        (["70000"], "'70000' is not a port: ports are 1 to 65535", "hvdcloud forward 6006"),
        (["9" * 5000], "is not a port", "LOCAL:REMOTE"),
        (["6006:"], "'6006:' is not a port", "LOCAL:REMOTE"),
        (["a:b"], "'a:b' is not a port", "LOCAL:REMOTE"),
        (["1:2:3"], "'1:2:3' is not a port", "LOCAL:REMOTE"),
        (["0:6006"], "'0:6006' is not a port", "hvdcloud forward 6006"),
        (["٣٠٠٠:6006"], "is not a port", "LOCAL:REMOTE"),
    ],
)
def test_what_is_no_port_is_refused_with_what_to_type(words: list[str], message: str, hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(words)
    assert message in raised.value.message
    assert hint in raised.value.hint
