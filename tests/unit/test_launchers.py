"""What each launcher takes: hosts, ranks, and which of them it is given."""

from __future__ import annotations

import pytest

from hvdcloud.config.model import Config
from hvdcloud.errors import UsageError
from hvdcloud.lifecycle.run_spec import check_planned
from hvdcloud.node.run.log import Normaliser, framed
from hvdcloud.runs.launchers import check_ranks, default_ranks, taken
from hvdcloud.runs.spec import Host

HOSTS = (Host(name="d-0", slots=2), Host(name="d-1", slots=2), Host(name="d-2", slots=2))


@pytest.mark.parametrize(("launcher", "ranks"), [("horovod", 6), ("torchrun", 6), ("each", 3)])
def test_every_slot_has_a_rank_and_each_node_one_with_each(launcher: str, ranks: int) -> None:
    assert default_ranks(HOSTS, launcher=launcher) == ranks
    assert [host.name for host in taken(HOSTS, ranks, launcher=launcher)] == ["d-0", "d-1", "d-2"]


@pytest.mark.parametrize(
    ("launcher", "ranks", "said"),
    [
        ("torchrun", 3, "3 ranks do not fill d-1, which has 2 slots"),
        ("torchrun", 1, "1 ranks do not fill d-0"),
        ("torchrun", 7, "7 ranks do not fit: 3 nodes with 6 slots"),
        ("each", 4, "4 ranks do not fit: run.launcher each starts one on each of 3 nodes"),
        ("each", 0, "0 ranks do not fit"),
        ("horovod", 7, "7 ranks do not fit: 3 nodes with 6 slots"),
        ("horovod", 0, "0 ranks do not fit"),
        ("horovod", -1, "-1 ranks do not fit"),
    ],
)
def test_ranks_that_a_launcher_cannot_start_are_refused(launcher: str, ranks: int, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        check_ranks(HOSTS, ranks, launcher=launcher)
    assert said in refused.value.message
    assert "-np" in refused.value.hint


@pytest.mark.parametrize(("launcher", "ranks"), [("torchrun", 4), ("torchrun", 2), ("each", 2), ("horovod", 3)])
def test_ranks_that_fill_their_nodes_are_taken(launcher: str, ranks: int) -> None:
    check_ranks(HOSTS, ranks, launcher=launcher)


@pytest.mark.parametrize(
    ("values", "ranks", "said"),
    [
        ({"run": {"launcher": "torchrun", "slots_per_node": 2}}, 3, "3 ranks do not fill d-1"),
        ({"run": {"launcher": "each"}}, 3, "starts one on each of 2 nodes"),
        ({}, 3, "2 nodes with 2 slots"),
        (
            {"provider": "gce", "gce": {"gpu": {"type": "nvidia-l4", "count": 4}}, "image": {"device": "cuda"}},
            9,
            "8 slots",
        ),
    ],
)
def test_ranks_that_will_not_fit_are_refused_before_there_are_nodes(
    values: dict[str, object], ranks: int, said: str
) -> None:
    config = Config.model_validate({"name": "d", "nodes": 2, **values})
    with pytest.raises(UsageError, match=said):
        check_planned(config, ranks)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"image": {"framework": "tensorflow"}, "run": {"launcher": "torchrun"}}, "image.framework is tensorflow"),
        ({"run": {"launcher": "torchrun", "controller": "mpi"}}, "run.controller is Horovod's"),
        ({"run": {"launcher": "each", "mpi_args": "-x A"}}, "run.mpi_args is Horovod's"),
        ({"run": {"launcher": "each", "elastic": {"min": 1}}}, "run.elastic needs run.launcher"),
        ({"run": {"launcher": "each", "slots_per_node": 2}}, "run.slots_per_node needs run.launcher"),
        ({"run": {"launcher": "torch"}}, "'horovod', 'torchrun' or 'each'"),
    ],
)
def test_what_does_not_go_with_a_launcher_is_refused(values: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said.replace(".", r"\.")):
        Config.model_validate({"name": "d", **values})


def test_what_a_launcher_says_of_an_end_that_it_did_not_cause_is_not_in_the_log() -> None:
    log = Normaliser()
    assert log.feed(b"torchrun starts\n[1]<stdout>:" + framed(b"hello\n")) == b"[launcher] torchrun starts\n[1] hello\n"
    log.hears_launcher = False
    assert log.feed(b"Traceback (most recent call last):\n[0]<stderr>:" + framed(b"bye\n")) == b"[0] bye\n"
