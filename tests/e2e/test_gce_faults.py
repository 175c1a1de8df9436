"""Compute Engine: everything that can go wrong with its API during `up`, `list` and `down`, as a person sees it.

Afterwards nothing is left: either at once or, where `down` itself is told that it may not delete, after the next one.
"""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from hvdcloud.lifecycle.up import MAKING_SECONDS
from tests.standins.compute import Emulator
from tests.support.gce_records import (
    ZONES,
    A,
    RecordsCloud,
    W,
    another_laptop,
    came_up,
    listed,
    make,
    stands_for_its_image,
)
from tests.support.harness import Ended, Project, Screen
from tests.support.impatient import IMPATIENT, QUICK

pytestmark = pytest.mark.engine

BULK_INSERT = "compute.instances.bulkInsert"
DELETE = "compute.instances.delete"


@pytest.fixture
def emulator(records: RecordsCloud) -> Emulator:
    return records.cloud.emulator


@pytest.fixture(autouse=True)
def empty(records: RecordsCloud, emulator: Emulator) -> Iterator[None]:
    """The cloud is empty before a test, and it must be so after it."""
    yield
    left = records.left()
    emulator.reset()
    assert left == []


@pytest.fixture
def project(tmp_path: Path, records: RecordsCloud) -> Project:
    return replace(records.project(tmp_path), first=QUICK)


def impatient(project: Project) -> Project:
    """Its commands give up after 1.5 s where they would after two minutes."""
    return replace(project, first=IMPATIENT)


@pytest.fixture
def cluster(project: Project) -> Project:
    """A project whose cluster is up, made by another user, longer ago than an `up` takes."""
    make(project, age=MAKING_SECONDS)
    return project


def zones_asked(emulator: Emulator) -> list[str]:
    """The zones in which VMs were asked for, in order."""
    return [
        entry.target.partition("/zones/")[2].partition("/")[0]
        for entry in emulator.log.entries()
        if entry.method == BULK_INSERT and entry.http == "POST"
    ]


def says(ended: Ended, *words: str) -> Ended:
    """All of it is in what the command said, whose last line is the next thing to do; and it is no traceback."""
    for word in words:
        assert word in ended.err, ended.err
    assert "Traceback" not in ended.err
    assert "a bug in hvdcloud" not in ended.err
    assert ended.err.splitlines()[-1].startswith("  → ")
    return ended


def nothing_is_left(records: RecordsCloud, project: Project) -> None:
    """Not even when the command has just ended."""
    assert records.left() == []
    assert project.hvdcloud("down", "--json").json["result"]["nothing_to_do"]


# --- no capacity, no quota --------------------------------------------------------------------------------------------


def test_up_waits_until_a_zone_has_room(records: RecordsCloud, emulator: Emulator, project: Project) -> None:
    records.fail({"stockout": {}}, method=BULK_INSERT, times=None)
    with project.started("up", "--wait", "4s") as process:
        screen = Screen(process)
        screen.wait_for("t-gce: no room in 3 zones; next try in 4 s")
        assert records.left() == []
        emulator.faults.clear()
        code = screen.end()
    came_up(Ended(code, "", screen.text))
    assert "no zone has room; trying until " in screen.text
    assert zones_asked(emulator) == [*ZONES, A]
    project.hvdcloud("down", "--force")


# --- passing trouble --------------------------------------------------------------------------------------------------


def test_the_network_goes_away_in_the_middle(records: RecordsCloud, tmp_path: Path) -> None:
    with Relay(records.cloud.emulator.url) as relay:
        project = records.project(tmp_path)
        project.environ["HVDCLOUD_GOOGLE_ENDPOINT"] = relay.url
        records.fail({"hang_ready": True, "at": "driver"}, instance="t-gce-1")
        with impatient(project).started("up") as process:
            screen = Screen(process)
            screen.wait_for("t-gce-1: driver")
            relay.cut()
            screen.end()
        assert process.returncode == 8
        says(
            Ended(process.returncode, "", screen.text),
            "t-gce did not come up",
            "it is not proven that nothing is left",
            "hvdcloud down as soon as that is fixed; what is left deletes itself 12 h after its start",
        )
    assert len(records.left()) == 6
    at_home = records.project(tmp_path / "again")
    at_home.hvdcloud("down")
    assert records.left() == []


class Relay:
    """Between a command and the API; can be cut like a cable."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        assert address.port is not None
        self._target = (address.hostname, address.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Relay:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._open += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=_copy, args=pair, daemon=True).start()

    def cut(self) -> None:
        for each in (self._listener, *self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


# --- zones that do not answer -----------------------------------------------------------------------------------------


def test_a_zone_that_does_not_answer_may_hold_anything(
    records: RecordsCloud, emulator: Emulator, project: Project
) -> None:
    emulator.set_unreachable(W, True)
    said = says(project.hvdcloud("list", expect=8), f"zone {W} did not answer", "STILL COST MONEY")
    assert "there is no cluster" not in said.out
    says(project.hvdcloud("down", expect=8), f"nothing of t-gce was found, but zone {W} did not answer")
    says(project.hvdcloud("down", "--all", expect=8), f"zone {W} did not answer")
    emulator.set_unreachable(W, False)
    nothing_is_left(records, project)


def test_a_zone_that_is_cut_off_while_vms_are_made_there(
    records: RecordsCloud, emulator: Emulator, project: Project
) -> None:
    records.fail({"hang_ready": True}, instance="t-gce-0")
    with impatient(project).started("up") as process:
        screen = Screen(process)
        screen.wait_for("t-gce-1: ready")
        emulator.set_unreachable(A, True)
        screen.end()
    assert process.returncode == 8
    says(Ended(8, "", screen.text), "t-gce did not come up", f"zone {A}")
    assert len(emulator.state.instances()) == 2
    emulator.set_unreachable(A, False)
    project.hvdcloud("down")
    assert records.left() == []


# --- nodes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["up", "launch"])
def test_a_node_that_never_gets_ready_is_waited_for_until_ctrl_c(
    records: RecordsCloud, tmp_path: Path, engine: Any, command: str
) -> None:
    project = records.project(tmp_path)
    settings = json.loads((project.folder / "hvdcloud.yaml").read_text())
    repository = records.repository.replace("/small:1", "/waits:1")
    settings["image"] |= {"repository": repository, "requirements": "requirements.txt"}
    project.write("hvdcloud.yaml", json.dumps(settings))
    records.fail({"hang_ready": True, "at": "pulling"}, instance="t-gce-1")
    with stands_for_its_image(engine, project), project.started(command) as process:
        screen = Screen(process)
        screen.wait_for("t-gce-1: pulling")
        process.send_signal(signal.SIGINT)
        screen.end()
    assert process.returncode == 130
    assert screen.text.splitlines()[-1] == (
        f"{command} of t-gce was interrupted; everything that it had made is deleted; hvdcloud {command} starts again"
    )
    nothing_is_left(records, project)


# --- down -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "fault", "words"),
    [
        (DELETE, {"status": 403}, ["403 forbidden", f"instances delete t-gce-0 --zone {A}", f"VM {A}/t-gce-1"]),
        (
            "compute.firewalls.delete",
            {"status": 400, "message": "It is in use"},
            ["It is in use", "gcloud compute firewall-rules delete hvdcloud-t-gce-"],
        ),
    ],
)
def test_what_cannot_be_deleted_is_named_with_a_command(
    records: RecordsCloud, cluster: Project, method: str, fault: dict[str, Any], words: list[str]
) -> None:
    records.fail(fault, method=method, times=None)
    ended = says(
        cluster.hvdcloud("down", expect=8),
        "2 objects of t-gce could not be deleted and may STILL COST MONEY",
        "--project test-project --quiet",
        "hvdcloud down tries again",
        *words,
    )
    assert "is gone" not in ended.out
    left = {"firewall" if "firewalls" in link else "VM" for link in records.left()}
    assert left == {"firewall" if "firewalls" in method else "VM"}
    records.cloud.emulator.faults.clear()
    cluster.hvdcloud("down")
    assert records.left() == []


# --- nothing goes wrong -----------------------------------------------------------------------------------------------


def test_dry_run_prints_the_requests_and_the_price_and_changes_nothing(
    records: RecordsCloud, emulator: Emulator, project: Project
) -> None:
    plan = project.hvdcloud("up", "--dry-run", "--json").json["result"]
    vms = plan["requests"][-1]
    assert vms["method"] == f"POST /compute/v1/projects/test-project/zones/{A}/instances/bulkInsert"
    assert vms["body"]["minCount"] == vms["body"]["count"] == "2"
    assert [request["object"].split()[0] for request in plan["requests"]] == ["firewall", "firewall", "2"]
    assert 0.5 < plan["dollars_per_hour"] < 2
    text = project.hvdcloud("up", "--dry-run").out
    first, second, *_ = text.splitlines()
    machine = vms["body"]["instanceProperties"]["machineType"]
    assert first == f"cluster {project.name}: 2 nodes on Compute Engine, {machine} with 1 nvidia-tesla-t4"
    assert second.startswith("3 requests: firewall ")
    assert second.endswith(" and 1 more; --json prints them")
    assert f"${plan['dollars_per_hour']:.2f}/h, at worst $" in text
    assert text.splitlines()[-1].endswith("(after 12 h 00 min); nothing was changed")
    assert {entry.http for entry in emulator.log.entries()} == {"GET"}
    assert records.left() == []
    assert list(project.state.glob("*/journal.jsonl")) == []


def test_list_from_another_laptop_shows_what_it_costs(cluster: Project) -> None:
    price = cluster.hvdcloud("list", "--json").json["result"][0]["dollars_per_hour"]
    assert 0.5 < price < 2
    other = another_laptop(cluster)
    rows = [line.split() for line in other.hvdcloud("list").out.splitlines()]
    assert rows[0][:8] == ["CLUSTER", "NODES", "STATE", "$/H", "SO", "FAR", "AT", "WORST"]
    assert rows[1][:4] == ["t-gce", "2/2", "whole", f"{price:.2f}"]
    assert rows[1][6] == "somebody"
    assert len(listed(other)) == 4
    other.hvdcloud("down")


def test_down_all_deletes_the_clusters_of_everybody(records: RecordsCloud, cluster: Project, tmp_path: Path) -> None:
    make(records.project(tmp_path / "second", "t-gce-b"))
    out = another_laptop(cluster).hvdcloud("down", "--all").out
    assert "t-gce is gone" in out
    assert "t-gce-b is gone" in out
    assert records.left() == []
