"""What a node tells a metadata server about itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvdcloud.node.boot import entrypoint
from hvdcloud.remote.keys import new_key_pair


def test_every_key_that_is_given_opens_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    laptop, mesh, third = (new_key_pair(name).public for name in ("laptop", "mesh", "third"))
    monkeypatch.setenv("HVDCLOUD_NODE_ROOT", str(tmp_path))
    file = tmp_path / "root/.ssh/authorized_keys"
    monkeypatch.setenv("HVDCLOUD_AUTHORIZED_KEY", f"{laptop}\n{mesh}\n")
    for _ in range(2):
        entrypoint._authorize()
        assert file.read_text().splitlines() == [laptop, mesh]
    monkeypatch.setenv("HVDCLOUD_AUTHORIZED_KEY", third)
    entrypoint._authorize()
    assert file.read_text().splitlines() == [third, laptop, mesh]


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "ssh-ed25519",
        "ssh-ed25519 AAAA",
        "ssh-ed25519 not/base=64",
        "\n\n",
        'command="sh" {key}',
        "{key}\n\n{key}",
        "{key}\nssh-rsa AAAAB3NzaC1yc2E=x",
        "ssh-rsa {blob}",
    ],
)
def test_what_is_no_public_key_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    key = new_key_pair("laptop").public
    monkeypatch.setenv("HVDCLOUD_NODE_ROOT", str(tmp_path))
    monkeypatch.setenv("HVDCLOUD_AUTHORIZED_KEY", wrong.format(key=key, blob=key.split()[1]))
    with pytest.raises(ValueError, match="does not hold one public key a line"):
        entrypoint._authorize()
    assert not (tmp_path / "root").exists()
