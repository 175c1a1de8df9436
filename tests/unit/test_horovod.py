"""horovodrun's command line, word for word."""

from __future__ import annotations

from typing import Any

import pytest

from hvdcloud.cluster.record import ClusterRecord, MemberRecord
from hvdcloud.config.model import Config
from hvdcloud.errors import UsageError
from hvdcloud.lifecycle.run_spec import crowded, gloo_timeout, hosts_of
from hvdcloud.runs.horovod_args import elastic_argv, horovodrun_argv
from hvdcloud.runs.launchers import check_ranks, taken
from hvdcloud.runs.spec import Host

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
    ("ranks", "slots", "interface"),
    [(1, "digits-0:1", "lo"), (2, "digits-0:2", "lo"), (3, "digits-0:2,digits-1:1", "eth0")],
)
def test_no_more_slots_are_named_than_ranks_and_those_of_the_head_alone_talk_over_its_loopback(
    ranks: int, slots: str, interface: str
) -> None:
    argv = horovodrun_argv(hosts=HOSTS, ranks=ranks, interface="eth0")
    assert (argv[argv.index("-H") + 1], argv[argv.index("--network-interfaces") + 1]) == (slots, interface)


def test_mpi_arguments_need_mpi() -> None:
    with pytest.raises(UsageError, match="needs Open MPI"):
        horovodrun_argv(hosts=HOSTS, ranks=2, interface="eth0", mpi_args="--oversubscribe")


@pytest.mark.parametrize(
    ("device", "slots", "ranks", "said"),
    [
        ("cuda", None, 6, ""),
        ("cuda", 3, 3, "3 ranks on 2 GPUs of d-1"),
        ("cuda", 3, 6, "3 ranks on 2 GPUs of d-1, 3 ranks on 1 GPU of d-2"),
        ("cuda", 3, 1, ""),
        ("cpu", 3, 6, ""),
    ],
)
def test_more_ranks_on_a_node_than_it_has_gpus_are_named(device: str, slots: int | None, ranks: int, said: str) -> None:
    config = Config.model_validate({"name": "d", "image": {"device": device}, "run": {"slots_per_node": slots}})
    nodes = (MemberRecord(name="d-1", gpus=2), MemberRecord(name="d-2", gpus=1), MemberRecord(name="d-3"))
    record = ClusterRecord(id="d", nodes=nodes)
    found = crowded(config, record, taken(hosts_of(config, record), ranks))
    assert found.partition(";")[0] == said


def test_elastic_command_line_counts_in_ranks_what_the_configuration_counts_in_nodes() -> None:
    hosts = (*HOSTS, Host(name="digits-2", slots=2))
    assert elastic_argv(hosts=hosts, least=2, most=5, interface="eth0", gloo_timeout=120) == [
        "horovodrun", "--gloo", "-np", "4", "--min-np", "4", "--max-np", "10", "-p", "2222",
        "-i", "/root/.ssh/id_ed25519", "--network-interfaces", "eth0", "--disable-cache",
        "--gloo-timeout-seconds", "120", "--elastic-timeout", "900",
    ]  # fmt: skip


def test_hosts_of_different_sizes_never_keep_an_elastic_run_waiting_for_more_than_the_minimum() -> None:
    hosts = (Host(name="d-0", slots=4), Host(name="d-1", slots=1), Host(name="d-2", slots=2))
    argv = elastic_argv(hosts=hosts, least=2, most=3, interface="eth0", gloo_timeout=120)
    assert argv[argv.index("--min-np") + 1] == argv[argv.index("-np") + 1] == "3"
    assert argv[argv.index("--max-np") + 1] == "12"


def test_fewer_nodes_than_the_minimum_are_refused() -> None:
    with pytest.raises(UsageError, match=r"the cluster has 2 nodes, and run.elastic.min is 4"):
        check_ranks(HOSTS, 4, launcher="torchrun", least=4)


def test_a_node_takes_a_rank_for_each_gpu_or_one() -> None:
    nodes = tuple(MemberRecord(name=f"d-{index}", gpus=gpus) for index, gpus in enumerate((0, 2, 2)))
    found = hosts_of(Config.model_validate({"name": "d"}), ClusterRecord(id="d", nodes=nodes))
    assert [host.slots for host in found] == [1, 2, 2]


@pytest.mark.parametrize(
    ("elastic", "env", "seconds"),
    [(None, {}, 30), ({}, {}, 60), ({}, {"HOROVOD_GLOO_TIMEOUT_SECONDS": "20"}, 20)],
)
def test_an_elastic_run_waits_longer_for_slow_starters(
    elastic: dict[str, Any] | None, env: dict[str, str], seconds: int
) -> None:
    config = Config.model_validate({"name": "d", "run": {"elastic": elastic, "env": env}})
    assert gloo_timeout(config) == seconds
