"""Everything that reads what a node, a bucket, Google or a cloned file says, as functions of bytes.

Each may raise what its users expect, with words that a terminal can show; anything else is a finding.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyte

from hvdcloud.checkpoints import manifest as manifests
from hvdcloud.cli.screen import harmless, head, rows
from hvdcloud.cluster.model import Node, NodeState
from hvdcloud.cluster.state import ClusterState
from hvdcloud.config.file import load
from hvdcloud.errors import HvdcloudError
from hvdcloud.json_values import mapping, parse_object
from hvdcloud.lifecycle.context import Context
from hvdcloud.lifecycle.logs import read_log
from hvdcloud.lifecycle.top import View, _Watch
from hvdcloud.node.channel import Channel
from hvdcloud.node.records.spec import Spec
from hvdcloud.node.run.sync import Entry
from hvdcloud.node.uploads.drain import saved_note
from hvdcloud.providers.base import ignore_progress
from hvdcloud.providers.engine import nodes as engine
from hvdcloud.providers.engine import view as engine_view
from hvdcloud.providers.engine.view import EngineObjects
from hvdcloud.providers.gce.api.client import ComputeClient
from hvdcloud.providers.gce.inventory import Inventory
from hvdcloud.providers.gce.ops.ready import Boots, _Boot
from hvdcloud.providers.gce.resource_mapper import ResourceMapper
from hvdcloud.remote.ssh import Session
from hvdcloud.report.page import page
from hvdcloud.report.phases import phases
from hvdcloud.report.record import RunRecord
from hvdcloud.runs.data_progress import summary
from hvdcloud.runs.log_lines import job_lines, rank_lines
from hvdcloud.runs.notice import message
from hvdcloud.runs.progress import LogReader
from hvdcloud.runs.reports import RankRecord, UploadReport, instant, json_lines
from hvdcloud.runs.slow_ranks import slow_ranks_of
from hvdcloud.runs.stacks import RankStacks, grouped
from hvdcloud.runs.state import Event, RunState
from hvdcloud.visible import JobText, visible
from tests.fuzz.hostile import document, lines
from tests.support.views import view

Target = Callable[[bytes], None]

_RUN = "20261121-101112-abcdef"
_NODE = Node(
    name="digits-0", index=0, id="us-central1-a/digits-0", state=NodeState.RUNNING, address="127.0.0.1", port=22
)
_FOLDER = Path(tempfile.mkdtemp(prefix="hvdcloud-fuzz-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))


def _sayable(*texts: object) -> None:
    """What is shown or stored as UTF-8."""
    for text in texts:
        str(text).encode(errors="backslashreplace")


def _error(error: HvdcloudError) -> None:
    _sayable(error.message, error.hint, error.details)
    assert error.message, "an error without words"


# --- buckets ---------------------------------------------------------------------------------------------------------

_MANIFEST: Mapping[str, Any] = {
    "version": 1, "cluster": "digits", "run": _RUN, "node": 0, "complete": False,
    "files": [
        {"name": "epoch-1.pt", "size": 10, "crc32c": "AAAAAA==", "generation": 1, "modified": 1.5},
        {"name": "a/b.pt", "size": 0, "crc32c": "AAAAAA==", "generation": 2, "modified": 2},
    ],
    "uploading": [{"name": "c.pt", "size": 3, "crc32c": "AAAAAA==", "generation": 0, "modified": 3.0}],
    "resumed": "20261120-101112-abcdef",
}  # fmt: skip


def manifest(data: bytes) -> None:
    """A node's manifest."""
    try:
        found = manifests.from_json(document(data, [_MANIFEST]), source="gs://bucket/manifest-0.json")
    except HvdcloudError as error:
        _error(error)
        return
    for entry in (*found.files, *found.uploading):
        assert not Path(entry.name).is_absolute()
        assert ".." not in entry.name.split("/")
        entry.name.encode()
        os.utime(_FOLDER, (entry.modified, entry.modified))
        assert 0 <= entry.size < 2**63
        assert max(len(part.encode()) for part in entry.name.split("/")) <= 255
    text = manifests.to_json(found)
    assert manifests.to_json(manifests.from_json(text, source="again")) == text


_STATE: Mapping[str, Any] = {
    "run": _RUN, "cluster": "digits", "state": "done", "result": "failed", "exit_code": 3,
    "reason": "rank 1 on n1 exited with 3", "np": 2, "controller": "gloo", "nodes": ["n0", "n1"],
    "started": 1795000000.5, "ended": 1795000600.5, "nodes_lost": ["n1"], "world": 2, "restarts": 1,
    "ranks": [
        {"rank": 0, "exit_code": 143, "signal": 15, "terminated": True, "ended": 1795000600.0, "node": "n0"},
        {"rank": 1, "exit_code": 3, "signal": None, "terminated": False, "ended": 1795000599.0, "node": "n1"},
    ],
    "checkpoints": {"complete": True, "files": 2, "pending": ["a"], "errors": ["e"], "skipped": ["s"]},
    "about": {
        "provider": "gce", "machine": "n1-standard-8", "command": "python train.py", "dollars_per_hour": 1.5,
        "boot_seconds": 95.0,
    },
    "down_when_done": False, "elastic": {"min": 1, "max": 3},
    "members": [{"name": "n0", "alias": "n0", "state": "listed", "since": 1795000000.0, "why": ""}],
    "launched": 1795000010.0, "training_since": 1795000020.0, "training_until": 1795000590.0,
    "metrics": {"accuracy": 0.9, "loss": 0.1}, "data_seconds": 5.0, "data": [{"node": "n0", "phase": "ready"}],
    "supervisor_dead": False,
    "waits": [
        {"rank": 0, "node": "n0", "waited": 40.0, "seconds": 90.0, "recently": 0.5},
        {"rank": 1, "node": "n1", "waited": 4.0, "seconds": 90.0, "recently": 0.0},
    ],
    "stuck": {"seconds": 900.0, "groups": [{"ranks": [0], "lines": ["step (train.py:41)"], "waits_for": ["bias"]}]},
}  # fmt: skip
_SAMPLE: Mapping[str, Any] = {
    "t": 1795000005.0, "cpu": 62.0, "memory": 25e9, "memory_total": 63e9, "received": 12e6, "sent": 13e6, "waiting": 1,
    "log": 20, "trouble": "",
    "gpus": [{"index": 0, "utilization": 88, "memory": 11e9, "memory_total": 16e9, "temperature": 66, "power": 63}],
}  # fmt: skip
_EVENTS: Sequence[Any] = (
    {"t": 1795000002.0, "event": "every node is ready"},
    {"t": 1795000090.0, "event": "world", "ranks": 2, "nodes": 1, "node": "n0", "detail": "d"},
)
_LOG = (
    b"[launcher] starts\n[0] epoch 1/3: loss 1.9, accuracy 0.5, 4267 images/s\n[1] Traceback (most recent call last):\n"
    b'[1]   File "/workspace/train.py", line 5, in <module>\n[1]     raise ValueError("x")\n[1] ValueError: x\n'
    b"[0] epoch 2/3: loss 1.2\r[0] 10%|#\n"
)


def state(data: bytes) -> None:
    """A run's state."""
    found = RunState.from_json(parse_object(document(data, [_STATE])))
    written = json.dumps(found.to_json())
    assert json.dumps(RunState.from_json(json.loads(written)).to_json()) == written
    _sayable(found.reason, *(record.text for record in found.ranks))
    _sayable(found.about, UploadReport.merged({"n0": found.checkpoints}), summary(found), slow_ranks_of(found))
    _sayable(found.stuck and [found.stuck.text, *found.stuck.lines])
    _notice(found, _LOG)
    for part in phases(found, until=1795000000.0):
        assert part.seconds > 0
        assert math.isfinite(part.dollars)


def _notice(found: RunState, log: bytes) -> None:
    """What a person is told of it: text that acts on nothing."""
    sent = message(found, log=log)
    text = str(sent["text"])
    assert visible(text, lines=False) == text
    assert "<!" not in text
    json.dumps(sent, allow_nan=False).encode()


def report(data: bytes) -> None:
    """A run's objects in the bucket, as the page that `report` makes of them."""
    kind, rest = (data[0] % 4 if data else 0), data[1:]
    events = lines(rest, _EVENTS) if kind == 1 else json.dumps(_EVENTS[0]).encode()
    samples = lines(rest, [_SAMPLE]) if kind == 2 else b"\n".join([json.dumps(_SAMPLE).encode()] * 2)
    rows = [row for row in json_lines(samples) if instant(row.get("t")) is not None]
    html = page(
        RunRecord(
            cluster="digits",
            run=_RUN,
            bucket="gs://bucket",
            state=RunState.from_json(parse_object(document(rest, [_STATE]) if kind == 0 else json.dumps(_STATE))),
            log=[rest] if kind == 3 else [_LOG[:40], _LOG[40:]],
            samples={0: sorted(rows, key=lambda row: float(row["t"]))},
            events=Event.all_from_json(json_lines(events)),
            checkpoints=(),
            complete=True,
        )
    )
    html.encode()
    assert "<script" not in html
    assert "\x1b" not in html


def log(data: bytes) -> None:
    """A job's output, cut anywhere."""
    cut = data[0] if data else 0
    text = data[1:] if cut % 2 else _LOG + data[1:]
    failed = RunState.from_json(_STATE)
    for elastic in (False, True):
        reader = LogReader(elastic=elastic)
        shown = b""
        filters = (rank_lines(1), job_lines())
        for piece in (text[:cut], text[cut:]):
            reader.feed(piece)
            shown += b"".join(each.feed(piece) for each in filters)
        assert len(shown) <= 2 * len(text)
        failure = reader.failure(failed)
        _sayable(reader.last_line, reader.position, reader.metrics, failure)
    _notice(failed, text)


def terminal(data: bytes) -> None:
    """A job's output on a terminal: whatever it draws, whose it is stays in front of each line."""
    moves = (b"\r", b"\b", b"\x1b[2K", b"\x1b[1K", b"\x1b[K", b"\n", b"[0] ", "→ hvdcloud".encode(), "e\u0301".encode())
    said = b"[0] x" + b"".join(moves[byte] if byte < len(moves) else bytes([byte]) for byte in data[:30])
    drawn = pyte.Screen(400, 40)
    stream, text = pyte.Stream(drawn), JobText()
    for start in range(0, len(said), 7):
        stream.feed(text.feed(said[start : start + 7]).replace("\n", "\r\n"))
    for line in filter(None, map(str.rstrip, drawn.display)):
        assert line.startswith("["), line
        assert not line.startswith("[hvdcloud]") or b"\n" in said, line


# --- nodes -----------------------------------------------------------------------------------------------------------

_LOOK: Mapping[str, Any] = {
    "now": 1795000010.0, "run": _RUN, "state": {**_STATE, "state": "running", "result": None}, "sample": _SAMPLE,
    "log": {"offset": 30, "text": "[0] epoch 1/3: loss 0.5\n"},
}  # fmt: skip
_ANSWERS: Sequence[Any] = (
    _LOOK,
    {"error": "run RUN is not known on this node", "hint": "`hvdcloud status` shows the runs"},
    {"runs": [_STATE]},
)


def answer(data: bytes) -> None:
    """What a node answers over SSH, and the screen of `top` that it leads to."""
    session = Session(_NODE, ClusterState("digits"))
    code, said = (data[0] % 3 if data else 0), document(data[1:], _ANSWERS).decode(errors="replace")
    try:
        found = session.parse("look", said, exit_code=code, errors=said[:100])
    except HvdcloudError as error:
        _error(error)
        return
    watch = _Watch(_NODE, session)
    try:
        watch.take(found)
        watch.take(found)
        run, lines = watch.run_view()
    except HvdcloudError as error:
        _error(error)
        return
    _draw(view(nodes=[watch.view("running")], run=run, log=lines))


def _draw(seen: View) -> None:
    cells = [cell for row in rows(seen).values() for cell in row]
    for drawn in (head(seen), *cells, *map(harmless, seen.log)):
        assert "\x1b" not in drawn.plain


_STACKS: Mapping[str, Any] = {
    "t": 1795000010.0,
    "ranks": [{"rank": 0, "node": "digits-0", "threads": [{"name": "MainThread", "frames": [{"function": "f"}]}]}],
}
_REPLIES: Sequence[Any] = (
    {"runs": [_STATE, {**_STATE, "run": "20261122-101112-abcdef"}]},
    _LOOK,
    _STACKS,
    {"gpus": 1, "interface": "eth0", "boot": [["pull", 1.5]]},
    {"runs": {_RUN: 1795000010.0}},
)


def reply(data: bytes) -> None:
    """A head's answer, as `status`, `logs`, `stacks` and `up` use it."""
    try:
        found = Session(_NODE, ClusterState("digits")).parse(
            "state", document(data, _REPLIES).decode(errors="replace"), exit_code=0, errors=""
        )
    except HvdcloudError as error:
        _error(error)
        return

    def call(*_: object, **__: object) -> dict[str, Any]:
        return found

    head = SimpleNamespace(call=call, node=_NODE)
    context: Any = SimpleNamespace(
        name="digits", record=lambda _: None, fleet=lambda _: SimpleNamespace(head=head),
        console=SimpleNamespace(waiting=lambda *_: contextlib.nullcontext()),
    )  # fmt: skip
    cluster: Any = SimpleNamespace(name="digits", is_headless=False)
    for state in Context.run_states(context, cluster):
        assert state.run
        _sayable(state.reason, read_log(context, cluster, RunState(run=_RUN)).log.last_line)
    _sayable(*(group.text for group in grouped(RankStacks.all_from_json(found.get("ranks")))))


_LABELS: Mapping[str, Any] = {
    "managed-by": "hvdcloud", "hvdcloud-cluster": "digits", "hvdcloud-owner": "ada", "hvdcloud-id": "0a1b2c",
    "hvdcloud-nodes": "2", "hvdcloud-node": "1", "hvdcloud-created": "1790000000", "hvdcloud-port": "20001",
    "hvdcloud-image": "digits:1", "hvdcloud-bucket": "gs://b/digits",
}  # fmt: skip


def labels(data: bytes) -> None:
    """Labels of containers and VMs, which anybody who may make one writes: no cluster hides the others."""
    try:
        value = json.loads(document(data, [_LABELS]))
    except (ValueError, RecursionError):
        return
    found = {str(key): each for key, each in mapping(value).items() if isinstance(each, str)}
    container = {"Id": "c", "Names": ["/digits-0"], "State": "running", "Created": 1790000000}
    both = tuple({**container, "Labels": each} for each in ({**_LABELS, "hvdcloud-cluster": "fine"}, found))
    clusters = [
        *engine_view.describe_clusters(EngineObjects(containers=both), provider="x", describe=engine_view.node_of)
    ]
    assert "fine" in [each.name for each in clusters]
    zone = "https://compute.googleapis.com/compute/v1/projects/p/zones/us-central1-a"
    vm = {"name": "digits-0", "zone": zone, "status": "RUNNING", "labels": found,
          "metadata": {"items": [{"key": key, "value": each} for key, each in found.items()]}}  # fmt: skip
    rule = {"name": "digits", "description": " ".join(f"{key}={each}" for key, each in found.items())}
    mapper = ResourceMapper(project="p", iap=False)
    clusters += mapper.clusters(Inventory(instances=(vm,), disks=(vm,), firewalls=(rule,)))
    for each in clusters:
        _sayable(each, f"{each.created:%Y-%m-%d}", each.whole, each.has_all_nodes, each.has_stopped, each.is_headless)


_MESSAGES: Sequence[Any] = (
    {"type": "saved", "seconds": 1.5, "files": 1, "pending": [], "errors": []},
    {"type": "ended", "record": _STATE["ranks"][0], "ago": 0.5, "pid": 7, "reaped": True},
    {"type": "finished", "checkpoints": _STATE["checkpoints"], "orphaned": ""},
)


def wire(data: bytes) -> None:
    """Messages of another node's agent, in a pipe."""
    reader, writer = os.pipe()
    try:
        os.set_blocking(writer, False)
        os.write(writer, lines(data, _MESSAGES)[:60_000])
        os.close(writer)
        channel = Channel(reader)
        while not channel.closed:
            for message in channel.receive():
                # Those of their users' own `except` (node/run/supervisor.py).
                with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
                    _sayable(saved_note("digits-1", message))
                if isinstance(record := message.get("record"), dict):
                    _sayable(RankRecord.from_json(record).text)
                _sayable(UploadReport.from_json(message.get("checkpoints")))
    finally:
        os.close(reader)


_FILES: Sequence[Any] = (
    {"path": "a/b.py", "size": 3, "mode": 0o644, "sha256": "ab" * 32},
    {"path": "a/link", "link": "../b"},
)
_SPEC: Mapping[str, Any] = {
    "run": _RUN, "cluster": "digits", "node": 0, "name": "digits-0", "bucket": "gs://b", "bucket_endpoint": None,
    "keep_every": 2.0, "slots": 1, "cores": 2, "command": ["python", "train.py"], "resume": None,
    "elastic": {"min": 1, "max": 4}, "hosts": [{"name": "digits-0", "index": 0, "slots": 1}],
}  # fmt: skip


def prepare(data: bytes) -> None:
    """What a node is told of a run and of its files; another node may be the one that tells."""
    try:
        value = json.loads(document(data, [*_FILES, _SPEC]))
    except (ValueError, RecursionError):
        return
    if not isinstance(value, dict):
        return
    for read in (Entry.parse, Spec.from_mapping):
        try:
            found: Any = read(value)
        except HvdcloudError as error:
            _error(error)
            continue
        if isinstance(found, Entry):
            assert not os.path.normpath(f"w/{found.path}").startswith("..")


_ATTRIBUTES: Sequence[Any] = (
    {"status": "ready", "host_key": "ssh-ed25519 " + "A" * 68},
    {"status": "pulling", "percent": 5, "beside": "driver"},
    {"status": "failed", "step": "pull", "error": "no\nway"},
)


class _Silent(ComputeClient):
    def __init__(self) -> None:
        pass

    def serial_output(self, zone: str, name: str, start: int = -10_000) -> str:
        return ""


def guest_attribute(data: bytes) -> None:
    """What a VM writes of its start."""
    mapper = ResourceMapper(project="p", iap=False)
    boots = Boots(_Silent(), mapper, [_NODE], cluster="digits", deadline=0.0, on_progress=ignore_progress)
    boot = _Boot(_NODE)
    try:
        boots._hear(boot, document(data, _ATTRIBUTES).decode(errors="replace"))
    except HvdcloudError as error:
        _error(error)
    _sayable(boot.step)
    assert boot.host_key is None or "\n" not in boot.host_key


def container_line(data: bytes) -> None:
    """A line of a local node's output, which may be its state."""
    try:
        engine._status((engine.STATUS_PREFIX.encode() + document(data, _ATTRIBUTES)).decode(errors="replace"))
    except HvdcloudError as error:
        _error(error)


# --- files and services ----------------------------------------------------------------------------------------------

_CONFIG: Mapping[str, Any] = {
    "name": "digits", "provider": "gce", "nodes": 2, "image": {"framework": "torch", "device": "cpu"},
    "gce": {"project": "my-lab", "zones": ["us-central1-a"], "gpu": {"type": "nvidia-l4", "count": 1}},
    "run": {"command": "python train.py", "env": {"A": "b"}, "elastic": {"min": 1, "max": 3}},
    "checkpoints": {"bucket": "gs://bucket/prefix", "keep_every": "30s"}, "limits": {"max_hours": 2, "ask_above": 5},
}  # fmt: skip


def config(data: bytes) -> None:
    """A cloned project's hvdcloud.yaml."""
    file = _FOLDER / "hvdcloud.yaml"
    file.write_bytes(document(data, [_CONFIG]))
    try:
        loaded = load(file, environ={})
    except HvdcloudError as error:
        _error(error)
        return
    for setting in loaded.settings():
        _sayable(setting.text, setting.place.text)


TARGETS: Mapping[str, Target] = {
    target.__name__: target
    for target in (
        *(manifest, state, report, log, answer, wire, prepare, guest_attribute, container_line),
        *(reply, labels, terminal, config),
    )
}
SEEDS = Path(__file__).parent / "seeds"
"""A folder for each target: what was once found, and now is no finding any more."""


def seeds(name: str) -> list[bytes]:
    """A target's seeds: those that were kept, and scripts that leave the valid document as it is."""
    folder = SEEDS / name
    kept = [file.read_bytes() for file in sorted(folder.glob("*"))] if folder.is_dir() else []
    return [*kept, b"", b"\0", b"\x01", b"\x02", b"\0\0", b"\0\x01", b"\x01" + _LOG]
