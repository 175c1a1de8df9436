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


@pytest.mark.parametrize("empty", ["", "\n\n"])
def test_a_node_that_nobody_could_reach_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty: str
) -> None:
    monkeypatch.setenv("HVDCLOUD_NODE_ROOT", str(tmp_path))
    monkeypatch.setenv("HVDCLOUD_AUTHORIZED_KEY", empty)
    with pytest.raises(ValueError, match="holds no public key"):
        entrypoint._authorize()
    assert not (tmp_path / "root").exists()
