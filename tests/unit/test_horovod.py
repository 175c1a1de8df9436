"""horovodrun's command line, word for word."""

from __future__ import annotations

import pytest

from hvdcloud.errors import UsageError
from hvdcloud.horovod import Host, default_ranks, horovodrun_argv

HOSTS = (Host(name="digits-0", slots=2), Host(name="digits-1", slots=2))


def test_gloo_command_line() -> None:
    assert horovodrun_argv(hosts=HOSTS, ranks=4, interface="eth0") == [
        "horovodrun", "--gloo", "-np", "4", "-H", "digits-0:2,digits-1:2", "-p", "2222", "-i", "/root/.ssh/id_ed25519",
        "--network-interfaces", "eth0", "--disable-cache", "--gloo-timeout-seconds", "30",
    ]  # fmt: skip


def test_mpi_command_line_ties_the_control_connections_to_the_interface_too() -> None:
    argv = horovodrun_argv(hosts=HOSTS, ranks=3, interface="ens4", controller="mpi", mpi_args="--oversubscribe -x A")
    assert argv == [
        "horovodrun", "--mpi", "-np", "3", "-H", "digits-0:2,digits-1:1", "-p", "2222", "-i", "/root/.ssh/id_ed25519",
        "--network-interfaces", "ens4", "--disable-cache",
        "--mpi-args=-mca oob_tcp_if_include ens4 --oversubscribe -x A",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("ranks", "slots"),
    [(1, "digits-0:1"), (2, "digits-0:2"), (3, "digits-0:2,digits-1:1"), (4, "digits-0:2,digits-1:2")],
)
def test_no_more_slots_are_named_than_ranks_are_wanted(ranks: int, slots: str) -> None:
    argv = horovodrun_argv(hosts=HOSTS, ranks=ranks, interface="eth0")
    assert argv[argv.index("-H") + 1] == slots


@pytest.mark.parametrize(("ranks", "interface"), [(1, "lo"), (2, "lo"), (3, "eth0")])
def test_ranks_that_fit_on_the_head_talk_over_its_loopback(ranks: int, interface: str) -> None:
    argv = horovodrun_argv(hosts=HOSTS, ranks=ranks, interface="eth0")
    assert argv[argv.index("--network-interfaces") + 1] == interface


@pytest.mark.parametrize("ranks", [0, -1, 5])
def test_more_ranks_than_slots_are_refused(ranks: int) -> None:
    with pytest.raises(UsageError, match="do not fit"):
        horovodrun_argv(hosts=HOSTS, ranks=ranks, interface="eth0")


def test_mpi_arguments_need_mpi() -> None:
    with pytest.raises(UsageError, match="needs Open MPI"):
        horovodrun_argv(hosts=HOSTS, ranks=2, interface="eth0", mpi_args="--oversubscribe")


def test_every_slot_gets_a_rank_by_default() -> None:
    assert default_ranks(HOSTS) == 4
