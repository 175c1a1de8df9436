"""Which nodes an elastic run uses, and under which names; and which further names the head gives them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvdcloud.node.elastic.membership import MOST_FAILURES, Member, Membership, Place
from hvdcloud.node.mesh import hosts

QUIET = 20.0


def membership(nodes: int = 3, *, least: int = 1, most: int = 8) -> Membership:
    """All ready; the head is d-0."""
    members = [Member(name=f"d-{index}", index=index, slots=2, place=Place.READY) for index in range(nodes)]
    return Membership(members, least=least, most=most, quiet=QUIET, wall=lambda: 1000.0)


def started(nodes: int = 3, *, least: int = 1, most: int = 8) -> Membership:
    """All listed at the time 0, and at work."""
    made = membership(nodes, least=least, most=most)
    assert made.change(now=0.0) is not None
    return made


def places(made: Membership) -> dict[str, str]:
    return {each.name: each.state for each in made.shown()}


def test_the_first_list_has_every_node_under_its_own_name() -> None:
    made = membership()
    assert made.change(now=0.0) == {"d-0": 2, "d-1": 2, "d-2": 2}
    assert made.change(now=100.0) is None, "nothing has changed"
    assert set(places(made).values()) == {"listed"}


def test_workers_that_may_not_have_met_yet_are_not_notified_of_another_change() -> None:
    made = started()
    made.move("d-2", Place.LEAVING)
    assert not made.settled(now=QUIET - 0.1)
    assert made.change(now=QUIET - 0.1) is None
    assert made.settled(now=QUIET)
    assert made.change(now=QUIET) == {"d-0": 2, "d-1": 2}
    assert not made.settled(now=QUIET)


def test_a_listed_node_that_horovod_has_missed_is_listed_under_another_name() -> None:
    made = started()
    made.list_unused_again({"d-0", "d-1"}, now=QUIET)
    assert places(made)["d-2"] == "listed"
    made.list_unused_again({"d-0", "d-1"}, now=QUIET + 0.1)
    assert made.change(now=QUIET + 0.2) == {"d-0": 2, "d-1": 2, "d-2-g2": 2}


def test_a_node_that_the_others_are_slow_to_take_is_listed_again_less_and_less_often() -> None:
    made = started()
    now, aliases = 0.0, list[str]()
    while now < 15 * QUIET:
        now += 0.25
        made.list_unused_again({"d-0", "d-1"}, now=now)
        aliases += [alias for alias in made.change(now=now) or {} if alias.startswith("d-2")]
    assert aliases == ["d-2-g2", "d-2-g3", "d-2-g4"]
    # Once it has been used, Horovod may miss it again.
    made.list_unused_again({"d-0", "d-1", "d-2"}, now=now)
    assert made.members["d-2"].missed == 0


def test_after_a_loss_the_list_stays_until_the_others_have_gone_on() -> None:
    made = started()
    made.lost("d-2", "its connection broke", now=100.0)
    made.move("d-2", Place.READY)
    assert made.change(now=100.0 + QUIET - 0.1) is None
    assert made.change(now=100.0 + QUIET) == {"d-0": 2, "d-1": 2, "d-2-g2": 2}


def test_a_node_that_was_not_in_use_is_lost_without_any_wait() -> None:
    made = started(2)
    made.admit("d-2", index=2, slots=2)
    made.move("d-2", Place.READY)
    made.admit("d-3", index=3, slots=2)
    made.lost("d-3", "no route", now=50.0)
    assert made.change(now=50.0) == {"d-0": 2, "d-1": 2, "d-2": 2}


def test_every_return_has_another_name() -> None:
    made = started()
    for number in (2, 3, 4):
        now = 1000.0 * number
        made.lost("d-1", "gone", now=now)
        made.move("d-1", Place.READY)
        assert f"d-1-g{number}" in (made.change(now=now + 100.0) or {})
    assert made.members["d-1"].alias == "d-1-g4"


def fail(made: Membership, *, times: int, now: float, apart: float = 100.0) -> float:
    """The workers of d-1 fail and it is listed again, as often as that. Returns the time."""
    for _ in range(times):
        made.failed("d-1", "exit code 1", now=now)
        made.change(now=now + QUIET)
        now += apart
    return now


def test_a_node_whose_workers_fail_again_and_again_is_used_no_more() -> None:
    made = started()
    now = fail(made, times=MOST_FAILURES - 1, now=100.0)
    assert places(made)["d-1"] == "listed"
    fail(made, times=1, now=now)
    assert places(made)["d-1"] == "failed"
    assert [made.is_listed(f"d-{number}") for number in range(3)] == [True, False, True]
    assert [member.name for member in made.usable()] == ["d-0", "d-2"]


def test_a_worker_that_fails_as_soon_as_it_starts_counts_too() -> None:
    made = started()
    listed = 0.0
    for _ in range(MOST_FAILURES):
        # The command is not there, say.
        made.failed("d-1", "exit code 127", now=listed + 0.5)
        listed += 0.5 + QUIET
        made.change(now=listed)
    assert places(made)["d-1"] == "failed"


def test_what_fails_because_of_a_loss_is_not_held_against_its_node() -> None:
    made = started()
    for number in range(5):
        now = 100.0 + 50.0 * number
        made.lost("d-2", "gone", now=now)
        made.failed("d-1", "signal 6", now=now + 1.0)
        assert made.members["d-1"].failures == 0
        made.move("d-2", Place.READY)
        made.change(now=now + 45.0)
    assert places(made)["d-1"] == "listed"


def test_a_replaced_node_begins_without_failures() -> None:
    made = started()
    now = fail(made, times=MOST_FAILURES, now=100.0)
    made.admit("d-1", index=1, slots=4)
    assert (places(made)["d-1"], made.members["d-1"].failures) == ("preparing", 0)
    assert made.change(now=now + 500.0) is None
    made.move("d-1", Place.READY)
    assert made.change(now=now + 600.0) == {"d-0": 2, "d-2": 2, f"d-1-g{MOST_FAILURES + 1}": 4}


def test_no_more_than_the_most_are_listed_and_the_next_one_takes_a_free_place() -> None:
    made = started(3, most=2)
    assert places(made) == {"d-0": "listed", "d-1": "listed", "d-2": "ready"}
    made.lost("d-1", "gone", now=100.0)
    assert made.change(now=200.0) == {"d-0": 2, "d-2": 2}


def test_who_leaves_stays_listed_while_it_is_needed() -> None:
    made = started(2, least=2)
    assert not made.may_leave(["d-1"])
    made.move("d-1", Place.LEAVING, "preempted")
    assert made.change(now=100.0) is None
    assert made.is_listed("d-1")
    made.admit("d-2", index=2, slots=2)
    made.move("d-2", Place.READY)
    assert made.change(now=200.0) == {"d-0": 2, "d-2": 2}
    assert not made.is_listed("d-1")


@pytest.mark.parametrize(("leaving", "may"), [(["d-1"], True), (["d-1", "d-2"], False), (["d-1", "d-9"], True)])
def test_nodes_may_leave_as_long_as_enough_remain(leaving: list[str], may: bool) -> None:
    assert started(3, least=2).may_leave(leaving) is may


def test_a_lost_node_may_always_be_let_go() -> None:
    made = started(3, least=2)
    made.lost("d-2", "gone", now=10.0)
    assert made.may_leave(["d-2"])
    assert not made.may_leave(["d-1"])


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HVDCLOUD_NODE_ROOT", str(tmp_path))
    return tmp_path


def test_an_alias_leads_to_its_node_for_horovod_and_for_ssh(root: Path) -> None:
    hosts.write_aliases({"127.77.0.5-g2": "127.77.0.5", "127.77.0.6-g3": "127.77.0.6"})
    assert (root / "etc/hosts").read_text().splitlines()[1:3] == [
        "127.77.0.5 127.77.0.5-g2",
        "127.77.0.6 127.77.0.6-g3",
    ]
    ssh = (root / "root/.ssh/aliases").read_text()
    assert ssh.splitlines()[:2] == ["Host 127.77.0.5-g2", "    HostName 127.77.0.5"]
    hosts.write_aliases({})
    assert (root / "etc/hosts").read_text() == (root / "root/.ssh/aliases").read_text() == ""


def test_each_block_of_the_hosts_file_is_replaced_by_itself_and_the_rest_stays(root: Path) -> None:
    file = root / "etc/hosts"
    file.parent.mkdir()
    file.write_text("127.0.0.1 localhost\n10.9.9.9 other\n")
    inode = file.stat().st_ino
    hosts.write({"d-0": "10.0.0.2", "d-1": "10.0.0.3"})
    hosts.write({"d-1-g2": "10.0.0.3"}, block="other names")
    before = file.read_text()
    assert before.count("10.0.0.3") == 2

    hosts.write({"d-0": "10.0.0.2", "d-1": "10.0.0.4"})
    hosts.write({"d-1-g3": "10.0.0.4"}, block="other names")
    after = file.read_text()
    assert [line for line in after.splitlines() if "10.0.0.3" in line or "g2" in line] == []
    assert "10.0.0.4 d-1\n" in after
    assert "10.0.0.4 d-1-g3\n" in after
    hosts.write({}, block="other names")
    hosts.write({})
    assert file.read_text() == "127.0.0.1 localhost\n10.9.9.9 other\n"
    assert file.stat().st_ino == inode, "a mount in a container cannot be replaced"
