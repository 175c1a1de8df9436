"""How runs are named."""

from __future__ import annotations

from datetime import datetime, timezone

from hvdcloud.lifecycle.run_spec import new_run_id

NOW = datetime(2026, 11, 26, 2, 47, 59, 700_000, tzinfo=timezone.utc)


def test_runs_that_begin_in_one_second_have_different_names_in_their_order() -> None:
    runs: list[str] = []
    for _ in range(3):
        runs.append(new_run_id("52719f", runs, now=NOW))
    assert runs == ["20261126-024759-52719f", "20261126-024800-52719f", "20261126-024801-52719f"]
    assert runs == sorted(runs)
