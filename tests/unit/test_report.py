"""A run's report is one well-formed page that nothing in a log or a bucket can break out of."""

from __future__ import annotations

import json
import os
import re
import tracemalloc
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from hvdcloud.checkpoints.manifest import (
    Entry,
    Manifest,
    events_name,
    log_name,
    manifest_name,
    samples_name,
    state_name,
    to_json,
)
from hvdcloud.report.page import LAST_LINES, page
from hvdcloud.report.record import RunRecord, read_record
from hvdcloud.runs.state import Event, RunState
from hvdcloud.storage.folder import FolderBucket

CRC = "AAAAAA=="
RUN = "20261121-101112-abcdef"
BEGAN = 1_795_000_000.0
MARKUP = "<script>alert('x')</script>&\"'</pre></main>{{ 7 * 7 }}{% raw %}{#"
EVIL = MARKUP + "\x1b[31mred\x1b[0m\x00\x08]]>"


def samples(node: int, *, count: int = 120) -> list[dict[str, Any]]:
    """Of a node with two GPUs, every five seconds; the head knows how long the log is."""
    gpu = {"utilization": 88, "memory": int(11.2e9), "memory_total": int(16.1e9), "temperature": 58, "power": 63.0}
    row: dict[str, Any] = {
        "cpu": 45.0, "memory": int(21e9), "memory_total": int(63e9), "received": int(9e8), "sent": int(9e8),
        "waiting": 0, "gpus": [{"index": index, **gpu} for index in range(2)],
    }  # fmt: skip
    known = [{"log": 100 * number} if node == 0 else {} for number in range(count)]
    return [{"t": BEGAN + 2 + 5 * number, **row, **more} for number, more in enumerate(known)]


def log(epochs: int = 200) -> bytes:
    numbers = "loss 0.5, accuracy 0.8, 4267 images/s"
    return "".join(f"[0] epoch {epoch + 1:3}/{epochs}: {numbers}\n" for epoch in range(epochs)).encode()


def record(**changes: Any) -> RunRecord:
    """A run of two nodes."""
    values: dict[str, Any] = {
        "cluster": "digits", "run": RUN, "bucket": "gs://bucket", "complete": True,
        "state": {
            "started": BEGAN, "ended": BEGAN + 600, "result": "succeeded", "exit_code": 0, "np": 4, "reason": "",
            "nodes": ["digits-0", "digits-1"], "ranks": [],
            "about": {"provider": "gce", "machine": "n1-standard-8 with 2 nvidia-tesla-t4", "dollars_per_hour": 2.18,
                      "command": "python train.py --epochs 200", "image": "us-docker.pkg.dev/p/digits@sha256:1"},
        },
        "log": log(), "samples": {0: samples(0), 1: samples(1)},
        "events": [{"t": BEGAN + 1.5, "event": "every node is ready"}, {"t": BEGAN + 90, "event": "asked to stop"}],
        "checkpoints": [
            Entry(name=f"epoch-{n:03}.pt", size=44_700_000 + n, crc32c=CRC, generation=1, modified=BEGAN + 60 * n)
            for n in range(1, 11)
        ],
    }  # fmt: skip
    values |= changes
    state, events = RunState.from_json(values["state"]), Event.all_from_json(values["events"])
    return RunRecord(**{**values, "log": [values["log"]], "state": state, "events": events})


WORLDS = [(6, 8), (312, 6), (452, 4), (618, 6), (771, 8)]
"""Seconds into the elastic run, and how many ranks there are from then on."""


def elastic_record(**changes: Any) -> RunRecord:
    """Four nodes of two GPUs, of which two were lost and came back."""
    rows = {node: samples(node, count=240) for node in range(4)}
    rows[2] = [row for row in rows[2] if not 300 < row["t"] - BEGAN < 600]
    rows[3] = [row for row in rows[3] if not 445 < row["t"] - BEGAN < 750]
    events = [
        (1, {"event": "every node is ready"}),
        *((at, {"event": "world", "ranks": str(ranks), "nodes": str(ranks // 2)}) for at, ranks in WORLDS),
        (298, {"event": "lost a node", "node": "digits-2", "detail": "no heartbeat for 15 s"}),
        (420, {"event": "preempted", "node": "digits-3", "detail": "Compute Engine takes it back"}),
        (421, {"event": "node leaves", "node": "digits-3", "detail": "preempted"}),
        (446, {"event": "lost a node", "node": "digits-3", "detail": "the connection broke"}),
        (611, {"event": "node joins", "node": "digits-2", "detail": "as digits-2-g2"}),
        (765, {"event": "node joins", "node": "digits-3", "detail": "as digits-3-g2"}),
    ]
    names = [f"digits-{node}" for node in range(4)]
    state = {
        **record().state.to_json(), "ended": BEGAN + 1200, "np": 8, "nodes": names,
        "elastic": {"min": 1, "max": 4}, "world": 8, "restarts": 0,
        "members": [
            {"name": name, "alias": name + ("-g2" if name > "digits-1" else ""), "state": "listed",
             "since": BEGAN, "why": ""}
            for name in names
        ],
    }  # fmt: skip
    values = {"state": state, "samples": rows, "events": [{"t": BEGAN + at, **each} for at, each in events]}
    return record(**{**values, **changes})


def parsed(html: str) -> ET.Element:
    """The page as a tree; it is XML too, so that a parser can prove that it is whole."""
    return ET.fromstring(html.partition("\n")[2])


def words(root: ET.Element) -> str:
    return " ".join("".join(root.itertext()).split())


def captions(html: str) -> list[str]:
    return [each.text or "" for each in parsed(html).iter("figcaption")]


def test_the_page_is_whole_and_needs_nothing_from_outside() -> None:
    html = page(record())
    root = parsed(html)
    assert not {"script", "img", "link", "iframe", "object", "image", "use"} & {each.tag for each in root.iter()}
    assert not re.search(r"(?:src=|href=|url\(|@import|javascript:|\son\w+=)", html)
    assert "default-src 'none'" in html.replace("&#x27;", "'")
    text = words(root)
    for said in ("succeeded", "2 of n1-standard-8 with 2 nvidia-tesla-t4", "$0.36 at $2.18/h", "10 min 00 s"):
        assert said in text
    assert captions(html) == [
        "GPU utilisation", "GPU memory", "GPU temperature", "GPU power", "Loss", "Accuracy", "Images/s",
        "CPU utilisation", "Memory in use", "Network between the nodes",
    ]  # fmt: skip
    assert text.count("epoch-0") == 10


def test_hostile_text_is_shown_letter_by_letter_everywhere() -> None:
    state = elastic_record().state.to_json()
    state |= {key: f"{key} {EVIL}" for key in ("reason", "result")}
    state |= {"nodes": [f"node{number} {EVIL}" for number in range(4)]}
    state["ranks"] = [{"rank": 0, "node": f"ranked {EVIL}", "exit_code": 1, "ended": BEGAN + 1}]
    state["about"] = {**state["about"], **{key: f"{key} {EVIL}" for key in ("command", "image", "machine", "provider")}}
    events = [
        {"t": BEGAN + 1, "event": f"event {EVIL}"},
        {"t": BEGAN + 2, "event": "lost a node", "node": f"lost {EVIL}", "detail": f"detail {EVIL}"},
    ]
    values = {key: f"{key} {EVIL}" for key in ("cluster", "run", "bucket")}
    html = page(
        elastic_record(
            **values,
            state=state,
            log=f"[0] loss {EVIL}\n".encode() + b"\xff\xfe\n" + f"[0] logged {EVIL}\n".encode() * LAST_LINES,
            events=events,
            samples={0: [{**row, "trouble": f"trouble {EVIL}"} for row in samples(0)]},
            checkpoints=[Entry(name=f"file {EVIL}", size=1, crc32c=f"crc {EVIL}", generation=1, modified=BEGAN)],
        )
    )
    assert "<script" not in html
    assert "\x1b" not in html
    root = parsed(html)
    assert {each.tag for each in root.iter()} <= {each.tag for each in parsed(page(elastic_record())).iter()} | {"p"}
    found = words(root)
    shown = re.sub("[\x00\x08\x1b]", "\N{REPLACEMENT CHARACTER}", EVIL)
    places = (
        "cluster run bucket reason result command image machine provider node0 ranked event detail trouble file crc"
    )
    for place in (*places.split(), "lost a node: lost"):
        assert f"{place} {shown}" in found, place
    assert f"--name cluster {shown}" in found
    assert f"[0] logged {MARKUP}red" in found
    # The node's name is that of a line in each plot.
    assert f"node0 {shown} GPU 0" in [each.text for each in root.iter("title")]


def test_a_record_is_read_from_the_bucket_and_broken_lines_are_left_out(tmp_path: Path) -> None:
    bucket = FolderBucket(tmp_path)
    manifest = Manifest(cluster="digits", run=RUN, node=0, complete=True, files=[])
    bucket.write(manifest_name("digits", RUN, 0), to_json(manifest))
    rows = b'{"t": 2, "cpu": 1}\n{"t": 1}\n{"cpu": 3}\nnot json\n[1]\n{"t": tru'
    bucket.write(samples_name("digits", RUN, 0), rows)
    bucket.write(log_name("digits", RUN), b"[0] hello\n")
    bucket.write(events_name("digits", RUN), b'{"t": 1, "event": "x"}\n{"event": "y"}\n')
    bucket.write(state_name("digits", RUN), json.dumps({"result": "failed", "started": 1, "ended": 3}).encode())
    found = read_record(bucket, cluster="digits", run=RUN)
    assert found.samples == {0: [{"t": 1}, {"t": 2, "cpu": 1}]}
    assert [event.name for event in found.events] == ["x"]
    assert (found.started, found.state.ended, b"".join(found.log)) == (1, 3, b"[0] hello\n")
    bucket.write(state_name("digits", RUN), b"[" * 100_000)
    assert read_record(bucket, cluster="digits", run=RUN).state.run == ""


def test_an_elastic_run_shows_who_was_lost_and_who_came_back() -> None:
    found = elastic_record()
    found.state.restarts = 1
    html = page(found)
    text = words(parsed(html))
    for said in (
        "1 to 4 nodes",
        "Started again1 time",
        "2 lost, 1 preempted, 2 joined",
        "lost a node: digits-2: no heartbeat for 15 s",
        "node joins: digits-3: as digits-3-g2",
        "world: 6 ranks on 3 nodes",
    ):
        assert said in text, said
    assert captions(html)[0] == "GPU utilisation"


def test_a_report_reads_no_more_than_runs_have_and_says_what_it_left_out(tmp_path: Path) -> None:
    bucket = FolderBucket(tmp_path)
    for name in (state_name("digits", RUN), events_name("digits", RUN), samples_name("digits", RUN, 1)):
        bucket.write(name, b"")
        os.truncate(tmp_path / name, 3 << 30)
    bucket.write(manifest_name("digits", RUN, 0), b"[")
    bucket.write(samples_name("digits", RUN, 0), b'{"t": 1795000000, "cpu": 5, "x": [[[]]]}\n')
    tracemalloc.start()
    try:
        found = read_record(bucket, cluster="digits", run=RUN)
        html = page(found)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert found.samples[0] == [{"t": 1795000000, "cpu": 5}]
    for name in ("state.json", "events.jsonl", "samples-1.jsonl"):
        assert f"{name} has more than the" in html
    assert "manifest-0.json is not valid: it is not JSON" in html
