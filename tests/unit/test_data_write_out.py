"""A data set is on the disk before it is visible, and one that the disk did not take is fetched again."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from hvdcloud.node.data import tree


@pytest.fixture
def fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tree of a data set `train`, with one file."""
    monkeypatch.setenv("HVDCLOUD_NODE_ROOT", str(tmp_path))
    found = tree.tree_dir("train")
    found.mkdir(parents=True)
    (found / "one").write_bytes(b"one")
    (tree.work_dir("train") / "listing").write_bytes(b"the listing")
    return found


def test_a_tree_is_written_out_while_it_grows_and_once_more_at_the_end(
    fetched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "WRITE_OUT_SECONDS", 0.001)
    calls: list[int] = []
    growing = threading.Event()

    def sync(descriptor: int) -> None:
        assert os.path.samestat(os.fstat(descriptor), fetched.stat())
        calls.append(threading.get_ident())
        growing.set()

    with tree.WriteOut("train", sync=sync) as written:
        assert growing.wait(60)
        tree.make_visible("train", written)
    assert calls[-1] == threading.get_ident()
    assert calls[0] != calls[-1]
    assert (tree.set_dir("train") / "one").read_bytes() == b"one"


@pytest.mark.parametrize("meanwhile", [True, False])
def test_what_the_disk_did_not_take_is_no_set_and_is_not_kept(
    fetched: Path, monkeypatch: pytest.MonkeyPatch, *, meanwhile: bool
) -> None:
    monkeypatch.setattr(tree, "WRITE_OUT_SECONDS", 0.001 if meanwhile else 3600.0)
    failed = threading.Event()

    def sync(descriptor: int) -> None:
        # The kernel says it once.
        if not failed.is_set():
            failed.set()
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with tree.WriteOut("train", sync=sync) as written:
        if meanwhile:
            assert failed.wait(60)
        with pytest.raises(OSError, match="Input/output error"):
            tree.make_visible("train", written)
    assert not tree.set_dir("train").exists()
    assert not fetched.exists()


def test_a_context_that_ends_early_leaves_the_tree_for_the_next_fetch(fetched: Path) -> None:
    with pytest.raises(RuntimeError), tree.WriteOut("train"):
        raise RuntimeError
    assert (fetched / "one").read_bytes() == b"one"
    assert not tree.set_dir("train").exists()
