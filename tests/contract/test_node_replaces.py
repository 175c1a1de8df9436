"""A head that replaces lost VMs of its cluster, in front of the emulated Compute API and its IAM."""

from __future__ import annotations

import fcntl
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.cluster.model import ClusterSpec
from hvdcloud.config.model import LimitsConfig
from hvdcloud.node import paths
from hvdcloud.node.elastic.replace import Replacer
from hvdcloud.node.vms.templates import VmTemplates
from hvdcloud.providers.gce.names import belongs_to, cluster_id_of
from hvdcloud.providers.gce.plan.request import METADATA_AUTHORIZED_KEY, bulk_insert_bodies
from hvdcloud.providers.gce.provider import GceProvider
from hvdcloud.providers.gce.resource_mapper import metadata_of
from hvdcloud.runs.replacement import Pace
from tests.standins.compute import Delays, Emulator
from tests.standins.metadata.guest_attributes import identity_of_vm
from tests.support.cloud import NODES_ACCOUNT
from tests.support.gce_bench import BULK_INSERT, DELETE, Bench
from tests.support.harness import until
from tests.support.http_server import answering

ZONE = "us-central1-b"
RUN = "20261121-101112-abcdef"
KEY = "ssh-ed25519 AAAA mesh"
CREATE = "compute.instances.create"
QUICK = Pace(confirm=0.05, unattended=0.05, check=0.02, first_pause=0.1, longest_pause=0.5)


@dataclass
class Head:
    """A head with its cluster of three, what it said, and whom it took in."""

    bench: Bench
    spec: ClusterSpec
    provider: GceProvider
    vm_templates: VmTemplates
    said: list[str] = field(default_factory=list)
    admitted: list[str] = field(default_factory=list)
    joined: list[tuple[str, str, str]] = field(default_factory=list)
    replacers: list[Replacer] = field(default_factory=list)

    def name(self, index: int) -> str:
        return self.spec.node_name(index)

    def allow(self, *permissions: str) -> None:
        instance = f"projects/test-project/zones/*/instances/{self.spec.name}-*"
        access = self.bench.emulator.access
        for each in permissions or ("get", "getGuestAttributes", "delete"):
            access.allow(NODES_ACCOUNT, f"compute.instances.{each}", resource=instance)
        if not permissions:
            access.allow(NODES_ACCOUNT, CREATE, "compute.zoneOperations.get")

    def replacer(self, **more: Any) -> Replacer:
        options: dict[str, Any] = {"vm_templates": self.vm_templates, "pace": QUICK, **more}
        replacer = Replacer(
            RUN,
            say=self.said.append,
            admit=self.admitted.append,
            join=lambda name, address, key: self.joined.append((name, address, key)),
            **options,
        )
        self.replacers.append(replacer)
        return replacer

    def lose(self, index: int) -> None:
        """A Spot VM is taken away, with its disk."""
        self.bench.emulator.preempt(ZONE, self.name(index))
        until(lambda: self.vm(index) is None, seconds=20, what="the VM to be gone")

    def vm(self, index: int) -> dict[str, Any] | None:
        found = [vm for vm in self.bench.emulator.state.instances() if vm["name"] == self.name(index)]
        return found[0] if found else None

    def asked(self, method: str) -> int:
        return len([entry for entry in self.bench.emulator.log.entries() if entry.method == method])

    def until(self, replacer: Replacer, probe: Any, *, lost: list[str], what: str, seconds: float = 20) -> None:
        def look() -> Any:
            replacer.consider([name for name in lost if name not in self.admitted])
            return probe()

        until(look, seconds=seconds, what=f"{what}: {self.said}")


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Head]:
    with Emulator(delays=Delays(start=0.005, create=0.02, delete=0.02, other=0.01)) as emulator:
        bench = Bench(emulator, tmp_path)
        provider = bench.another(
            zones=[ZONE], spot="workers", limits=LimitsConfig.model_validate({"max_run_duration": "2h"})
        )
        spec = bench.spec(nodes=3)
        bench.create(spec, provider)
        cluster = provider.cluster(spec.name)
        assert cluster is not None
        payload = json.loads(json.dumps(provider.vm_templates(spec, cluster, range(1, 4))))
        vm_templates = VmTemplates.of(payload)
        assert vm_templates is not None

        with answering(identity_of_vm(emulator, account=NODES_ACCOUNT, zone=ZONE)) as server:
            monkeypatch.setenv("HVDCLOUD_NODE_ROOT", str(tmp_path))
            paths.run_dir(RUN).mkdir(parents=True)
            paths.node_file().write_text(
                json.dumps({"name": spec.node_name(0), "metadata": server, "compute_endpoint": emulator.url})
            )
            paths.ssh_dir().mkdir(parents=True)
            (paths.ssh_dir() / "id_ed25519.pub").write_text(KEY + "\n")
            head = Head(bench, spec, provider, vm_templates)
            yield head
            emulator.faults.clear()
            for replacer in head.replacers:
                replacer.close()
        assert list(provider.destroy(spec.name)) == []
        assert not emulator.state.left()


def test_the_orders_for_one_vm_are_what_the_laptop_itself_would_send(head: Head) -> None:
    body = head.vm_templates.body(head.name(2), seconds=1234, key=KEY)
    assert body is not None
    ours = next(
        item for item in body["instanceProperties"]["metadata"]["items"] if item["key"] == METADATA_AUTHORIZED_KEY
    )
    assert ours["value"] == f"{head.spec.authorized_key}\n{KEY}"
    ours["value"] = head.spec.authorized_key
    image = body["instanceProperties"]["disks"][0]["initializeParams"]["sourceImage"]
    expected = bulk_insert_bodies(
        head.spec, head.provider._settings, zone=ZONE, vm_image=image, indices=[2], run_seconds=1234
    )
    assert [body] == expected
    assert head.vm_templates.body(head.name(2), seconds=99, key=KEY) != body, "the orders themselves stay as they were"
    assert head.vm_templates.body(head.name(0), seconds=1234, key=KEY) is None, "the head is never replaced"
    assert head.vm_templates.body(head.name(4), seconds=1234, key=KEY) is None
    new = head.vm_templates.new_request_id()
    assert new != head.vm_templates.new_request_id()
    assert belongs_to(new, head.spec.name)
    assert cluster_id_of(new) == head.spec.id


def test_a_vm_that_is_gone_is_replaced_for_what_is_left_of_the_clusters_time(head: Head) -> None:
    head.allow()
    head.lose(1)
    replacer = head.replacer()
    head.until(replacer, lambda: head.admitted, lost=[head.name(1)], what="the node")
    assert head.admitted == [head.name(1)]
    vm = head.vm(1)
    assert vm is not None
    assert 7000 < int(vm["scheduling"]["maxRunDuration"]["seconds"]) <= 7200 - 60
    assert vm["scheduling"]["provisioningModel"] == "SPOT"
    assert metadata_of(vm)[METADATA_AUTHORIZED_KEY].splitlines() == [head.spec.authorized_key, KEY]
    (joined,) = head.joined
    assert joined[:2] == (head.name(1), vm["networkInterfaces"][0]["networkIP"])
    assert joined[2].startswith("ssh-ed25519 ")
    assert head.said == [
        f"node {head.name(1)} is gone; no client follows the run: the head replaces it",
        f"node {head.name(1)} is back",
    ]
    assert replacer.making == []
    # The laptop sees a whole cluster, and that one of its nodes is another.
    cluster = head.provider.cluster(head.spec.name)
    assert cluster is not None
    assert cluster.whole
    keys = head.provider.host_keys([cluster.nodes[1]])
    assert keys == {head.name(1): joined[2]}


def test_two_that_are_lost_are_made_at_the_same_time(head: Head) -> None:
    head.allow()
    head.lose(1)
    head.lose(2)
    names = [head.name(1), head.name(2)]
    replacer = head.replacer()
    head.until(replacer, lambda: len(head.admitted) == 2, lost=names, what="both nodes")
    assert sorted(head.admitted) == names


def test_what_has_stopped_is_deleted_first_and_what_runs_is_left_alone(head: Head) -> None:
    head.allow()
    head.bench.emulator.kill(ZONE, head.name(2))
    before = head.vm(1), head.vm(2)
    replacer = head.replacer()
    head.until(
        replacer,
        lambda: head.admitted and head.asked("compute.instances.get") > 8,
        lost=[head.name(1), head.name(2)],
        what="the one that had stopped",
    )
    assert head.admitted == [head.name(2)]
    after = head.vm(1), head.vm(2)
    assert before[0] == after[0]
    assert before[1]
    assert after[1]
    assert before[1]["id"] != after[1]["id"]


def test_while_a_client_follows_the_run_nothing_is_asked(head: Head) -> None:
    head.allow()
    head.lose(1)
    replacer = head.replacer()
    with (paths.run_dir(RUN) / "followers").open("w") as follower:
        fcntl.flock(follower, fcntl.LOCK_SH)
        for _ in range(20):
            replacer.consider([head.name(1)])
            threading.Event().wait(0.02)
        assert head.asked("compute.instances.get") == 0
    head.until(replacer, lambda: head.admitted, lost=[head.name(1)], what="the node, now that nobody does")


@pytest.mark.parametrize("granted", [(), ("get",)])
def test_a_right_that_is_missing_is_said_once_and_nothing_is_asked_again(head: Head, granted: tuple[str, ...]) -> None:
    if granted:
        head.allow(*granted)
    head.lose(1)
    head.lose(2)
    replacer = head.replacer()
    head.until(replacer, lambda: any("may not" in line for line in head.said), lost=[head.name(1)], what="the refusal")
    asked = len(head.bench.emulator.log.entries())
    for _ in range(20):
        replacer.consider([head.name(1), head.name(2)])
        threading.Event().wait(0.02)
    assert len(head.bench.emulator.log.entries()) == asked
    refusals = [line for line in head.said if "may not" in line]
    assert len(refusals) == 1
    assert "403 forbidden: Required 'compute.instances." in refusals[0]
    assert head.admitted == []


def test_where_there_is_no_room_it_is_tried_again_with_growing_pauses(head: Head) -> None:
    head.allow()
    head.lose(1)
    head.bench.fail({"stockout": {"after": 0}}, method=BULK_INSERT, times=3)
    before = head.asked(BULK_INSERT)
    replacer = head.replacer()
    head.until(replacer, lambda: head.admitted, lost=[head.name(1)], what="the fourth attempt")
    assert head.asked(BULK_INSERT) - before == 4
    assert len([line for line in head.said if "trying again from time to time" in line]) == 1


def test_a_node_that_does_not_come_up_is_deleted_and_made_once_more(head: Head) -> None:
    head.allow()
    head.lose(1)
    head.bench.emulator.faults.add({"fail_ready": {"step": "pull", "error": "no such image"}}, instance=head.name(1))
    replacer = head.replacer()
    head.until(replacer, lambda: head.admitted, lost=[head.name(1)], what="the second attempt")
    assert any("its step pull failed: no such image" in line for line in head.said)
    assert len(head.joined) == 1


def test_the_end_of_the_run_deletes_what_is_half_made(head: Head) -> None:
    head.allow()
    head.lose(1)
    head.bench.emulator.faults.add({"hang_ready": True}, instance=head.name(1))
    replacer = head.replacer()
    head.until(replacer, lambda: head.vm(1), lost=[head.name(1)], what="the new VM")
    assert replacer.making == [head.name(1)]
    replacer.close()
    until(lambda: head.vm(1) is None, seconds=20, what="its deletion")
    assert head.admitted == []
    assert replacer.making == []


def test_the_end_of_the_run_also_deletes_what_is_only_being_asked_for(head: Head) -> None:
    head.allow()
    head.lose(1)
    before = head.asked(BULK_INSERT)
    head.bench.fail({"slow": 1.0}, method=BULK_INSERT)
    replacer = head.replacer()
    head.until(replacer, lambda: head.asked(BULK_INSERT) > before, lost=[head.name(1)], what="the request")
    replacer.close()
    until(lambda: head.vm(1) is None, seconds=20, what="its deletion")
    assert head.asked(DELETE) >= 1
    assert head.admitted == []


def test_nothing_is_made_when_the_clusters_time_is_nearly_over(head: Head) -> None:
    head.allow()
    head.lose(1)
    before = head.asked(BULK_INSERT)
    replacer = head.replacer(vm_templates=head.vm_templates._replace(ends=0.0))
    head.until(replacer, lambda: head.said, lost=[head.name(1)], what="the reason")
    for _ in range(10):
        replacer.consider([head.name(1)])
        threading.Event().wait(0.02)
    assert head.said == [f"node {head.name(1)} is not replaced: the cluster's time is nearly over"]
    assert head.asked(BULK_INSERT) == before


def test_a_name_that_the_laptop_has_taken_meanwhile_is_the_laptops(head: Head) -> None:
    head.allow()
    head.lose(1)
    replacer = head.replacer()
    before = head.asked(BULK_INSERT)
    head.bench.fail({"hold": "before"}, method=BULK_INSERT)
    head.until(replacer, lambda: head.asked(BULK_INSERT) > before, lost=[head.name(1)], what="the head's request")
    head.provider.grow(head.spec, [1], journal=head.bench.journal)
    made = head.vm(1)
    head.bench.emulator.faults.release()
    asked = head.asked("compute.instances.get")
    head.until(
        replacer,
        lambda: head.asked("compute.instances.get") > asked + 2,
        lost=[head.name(1)],
        what="the head to look again",
    )
    now = head.vm(1)
    assert made
    assert now
    assert made["id"] == now["id"]
    assert head.admitted == []
