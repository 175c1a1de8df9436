"""What helps the workers of an elastic run to find each other again after a loss, and when they are given up."""

from __future__ import annotations

import pytest

from hvdcloud.node.elastic.rendezvous import (
    AGAIN_SECONDS,
    HOPELESS_SECONDS,
    IMPORT_SECONDS,
    NEW_SECONDS,
    WAKE_SECONDS,
    Rendezvous,
)
from hvdcloud.node.elastic.workers import Process
from hvdcloud.node.run.outcome import CONSEQUENCE_SECONDS
from tests.support.workers import end, see, see_all, world

STEP_SECONDS = 30.0


class Scene:
    """Three workers on three nodes that met at the time 10, unless they have not, and a clock."""

    def __init__(self, *, met: bool = True, longest_step: float = STEP_SECONDS) -> None:
        self.world = world()
        self.broken: list[float] = []
        self.rendezvous = Rendezvous(self.world, self.broken.append, longest_step=longest_step)
        self.now = 10.0
        if met:
            see_all(self.world, now=self.now)
            assert self.world.check_formed(self.world.nodes(), now=self.now)

    def lose(self, node: str) -> None:
        """As the supervisor does."""
        self.world.forget(node)
        self.rendezvous.lost(now=self.now)

    def hopeless_after(self, seconds: float, *, connecting: bool = False) -> bool:
        """Whether they are given up within these seconds."""
        until = self.now + seconds
        while self.now < until:
            self.now += 0.25
            if connecting:
                see_all(self.world, now=self.now)
            self.rendezvous.help(now=self.now)
            if self.rendezvous.is_hopeless(now=self.now):
                return True
        return False


def test_connections_are_broken_at_a_loss_but_not_those_that_may_have_been_made_since() -> None:
    scene = Scene()
    assert not scene.hopeless_after(60.0)
    assert scene.broken == []
    scene.lose("d-2")
    assert scene.broken == [NEW_SECONDS]


def test_what_one_loss_brings_about_breaks_them_once() -> None:
    scene = Scene()
    scene.lose("d-2")
    scene.now += WAKE_SECONDS - 0.1
    scene.lose("d-1")
    assert len(scene.broken) == 1
    scene.now += 0.1
    scene.rendezvous.lost(now=scene.now)
    assert len(scene.broken) == 2


def test_workers_that_have_not_met_again_lose_the_connections_that_were_new_at_the_loss() -> None:
    scene = Scene()
    scene.lose("d-2")
    assert not scene.hopeless_after(AGAIN_SECONDS - 0.25)
    assert len(scene.broken) == 1
    assert not scene.hopeless_after(0.25)
    # What they have made since the loss is left to them.
    assert scene.broken[1:] == [pytest.approx(AGAIN_SECONDS, abs=0.5)]
    assert scene.broken[1] < AGAIN_SECONDS
    assert not scene.hopeless_after(4 * AGAIN_SECONDS)
    assert len(scene.broken) == 2


def test_workers_that_have_met_again_keep_their_connections() -> None:
    scene = Scene()
    scene.lose("d-2")
    scene.rendezvous.over()
    assert not scene.hopeless_after(10 * STEP_SECONDS)
    assert scene.broken == [NEW_SECONDS]


@pytest.mark.parametrize(("met", "seconds"), [(True, STEP_SECONDS), (False, HOPELESS_SECONDS)])
def test_workers_that_do_not_connect_are_given_up_once_each_loss(met: bool, seconds: float) -> None:
    scene = Scene(met=met)
    scene.lose("d-2")
    assert not scene.hopeless_after(seconds - 0.25)
    assert scene.hopeless_after(0.5)
    assert not scene.hopeless_after(10 * seconds), "it was said once"
    scene.lose("d-1")
    assert scene.hopeless_after(STEP_SECONDS + 1.0)


def test_workers_have_the_time_that_a_step_takes_until_they_begin_to_connect() -> None:
    scene = Scene(longest_step=300.0)
    scene.lose("d-2")
    assert not scene.hopeless_after(299.75)
    assert scene.hopeless_after(0.5)


def test_they_have_as_long_after_a_node_froze_whose_agent_was_silent_before() -> None:
    scene = Scene()
    scene.now += 8.0
    see_all(scene.world, now=scene.now)
    for process in scene.world.processes.values():
        process.reported_at -= 8.0 if process.node == "d-2" else 0.0
    assert not scene.world.check_formed(scene.world.nodes(), now=scene.now)
    scene.lose("d-2")
    assert not scene.hopeless_after(STEP_SECONDS - 0.25)
    assert scene.hopeless_after(0.5)


def test_workers_that_all_connect_in_vain_are_given_up_sooner() -> None:
    scene = Scene()
    scene.lose("d-2")
    started = scene.now
    assert scene.hopeless_after(STEP_SECONDS - 1.0, connecting=True)
    assert scene.now - started >= HOPELESS_SECONDS


def test_a_worker_that_starts_is_waited_for() -> None:
    scene = Scene()
    scene.lose("d-2")
    scene.now += 5.0
    scene.world.processes["d-1", 8] = Process(1, "d-1", "d-1-g2", began=scene.now)
    assert not scene.hopeless_after(IMPORT_SECONDS - 0.25)
    assert scene.hopeless_after(0.5)


def test_a_worker_that_was_looking_for_one_that_is_lost_is_not_waited_for() -> None:
    scene = Scene()
    scene.world.processes["d-1", 8] = Process(1, "d-1", "d-1-g2", began=scene.now)
    scene.world.disturbed(now=scene.now)
    scene.now += 5.0
    see(scene.world, "d-1", now=scene.now, pid=8)
    scene.lose("d-2")
    assert not scene.hopeless_after(HOPELESS_SECONDS - 0.25)
    assert scene.hopeless_after(0.5)


def test_a_worker_that_has_been_starting_for_long_still_has_the_time_to_meet_the_others() -> None:
    scene = Scene()
    scene.lose("d-2")
    scene.world.processes["d-1", 8] = Process(1, "d-1", "d-1-g2", began=scene.now)
    assert not scene.hopeless_after(IMPORT_SECONDS - 1.0)
    see(scene.world, "d-1", now=scene.now, pid=8)
    assert not scene.hopeless_after(HOPELESS_SECONDS - 0.25)
    assert scene.hopeless_after(0.5)


def test_new_workers_do_not_wait_for_each_other_when_all_that_knew_what_was_trained_are_gone() -> None:
    scene = Scene()
    scene.world.processes["d-2", 8] = Process(2, "d-2", "d-2-g2", began=scene.now)
    for node in ("d-0", "d-1", "d-2"):
        end(scene.world, node, 1, at=scene.now)
    scene.rendezvous.lost(now=scene.now)
    assert not scene.hopeless_after(CONSEQUENCE_SECONDS - 0.25)
    assert scene.hopeless_after(0.5)


def test_nothing_is_hopeless_without_workers() -> None:
    scene = Scene()
    for node in ("d-0", "d-1", "d-2"):
        scene.lose(node)
    assert not scene.hopeless_after(10 * STEP_SECONDS)


def test_workers_that_continue_long_after_one_ended_well_are_parted_from_it_once() -> None:
    scene = Scene()
    end(scene.world, "d-1", 0, at=scene.now)
    assert not scene.hopeless_after(60.0)
    assert scene.broken == [NEW_SECONDS]
