"""What a node says of its processors, its memory, its network and its GPUs."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from hvdcloud.checkpoints.manifest import samples_name
from hvdcloud.node.monitor.sample import (
    parse_gpus,
    samples_file,
)
from hvdcloud.node.monitor.sampler import Sampler, Series
from hvdcloud.node.records.spec import Spec
from hvdcloud.node.uploads.loop import UploadLoop
from hvdcloud.storage.folder import FolderBucket

MIB = 1 << 20


def test_gpus_say_what_they_measure_and_nothing_of_what_they_do_not() -> None:
    output = (
        "0, 87, 30210, 81559, 61, 402.55\n"
        "1, [N/A], 512, 81559, 40, [N/A]\n"
        "2, [Not Supported], [Not Supported], [Not Supported], [Unknown Error], [GPU requires reset]\n"
        "Unable to determine the device handle for GPU 0000:0B:00.0: GPU is lost.\n"
    )
    assert parse_gpus(output) == [
        {"index": 0, "utilization": 87, "memory": 30210 * MIB, "memory_total": 81559 * MIB, "temperature": 61,
         "power": 402.6},
        {"index": 1, "memory": 512 * MIB, "memory_total": 81559 * MIB, "temperature": 40},
        {"index": 2},
    ]  # fmt: skip
    assert parse_gpus("No devices were found\n") == []


@pytest.mark.parametrize("count", [5, 10, 11, 1000])
def test_the_file_of_samples_stays_small_and_covers_the_whole_run(tmp_path: Path, count: int) -> None:
    path = tmp_path / "samples.jsonl"
    series = Series(path, most=10)
    for number in range(count):
        series.add({"t": number})
    kept = [json.loads(line)["t"] for line in path.read_text().splitlines()]
    assert len(kept) <= 10
    gaps = {later - earlier for earlier, later in pairwise(kept)}
    assert len(gaps) <= 2
    assert max(gaps) <= max(1, 4 * count // 10)
    assert kept[0] == 0
    assert kept[-1] >= count - max(gaps)


def test_a_second_agent_continues_with_the_file_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    Series(path).add({"t": 1})
    Series(path).add({"t": 2})
    assert [json.loads(line)["t"] for line in path.read_text().splitlines()] == [1, 2]


def test_a_node_that_takes_anothers_place_keeps_what_that_had_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = "20261121-101112-abcdef"
    bucket = FolderBucket(tmp_path / "bucket")
    spec = Spec.from_mapping(
        {"run": run, "cluster": "digits", "node": 2, "name": "digits-2", "bucket": "file:///b", "keep_every": 1,
         "slots": 1, "cores": 1, "command": ["true"]}
    )  # fmt: skip
    for machine, line in (("first", b'{"t": 1}\n'), ("second", b'{"t": 2}\n')):
        monkeypatch.setenv("HVDCLOUD_NODE_ROOT", str(tmp_path / machine))
        sampler = Sampler(spec, UploadLoop(spec))
        samples_file(run).parent.mkdir(parents=True)
        samples_file(run).write_bytes(line)
        sampler.put(bucket)
        sampler.put(bucket)
    assert bucket.read(samples_name("digits", run, 2)) == b'{"t": 1}\n{"t": 2}\n'
