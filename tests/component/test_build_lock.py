"""Builds of one user on one engine: one at a time, and the others say that they wait."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

import pytest

from hvdcloud.image.build.builder import _locked
from hvdcloud.image.engine_reports import BuildEvent, ignore


def test_a_build_that_waits_says_so_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    said: list[BuildEvent] = []
    waiting = threading.Event()

    def tell(event: BuildEvent) -> None:
        said.append(event)
        waiting.set()

    def build() -> None:
        with _locked(tell):
            pass

    other = threading.Thread(target=build)
    # Once more: what an earlier build wrote is no part of it.
    for _ in range(2):
        with _locked(ignore):
            pass
    with _locked(ignore):
        other.start()
        assert waiting.wait(60)
    other.join(60)
    assert not other.is_alive()
    assert [event.text for event in said] == ["waiting for another hvdcloud that is building an image"]
