"""What every node does before Horovod is started again."""

from __future__ import annotations

from typing import Any, cast

import pytest

from hvdcloud.node.elastic.restart import GATHER, RESET, STEP_SECONDS, Restart
from hvdcloud.node.run.lease import Lease


class Channel:
    def __init__(self) -> None:
        self.sent: list[str] = []

    def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message["type"])


class Agent:
    """Of the lease, what a restart uses."""

    def __init__(self, *, ready: bool = True) -> None:
        self.ready = ready
        self.channel = Channel()


class Scene:
    def __init__(self, **agents: Agent) -> None:
        self.agents = agents
        self.restart = Restart(cast("dict[str, Lease]", self.agents), now=0.0)

    def sent(self) -> dict[str, list[str]]:
        return {name: agent.channel.sent for name, agent in self.agents.items()}


@pytest.fixture
def scene() -> Scene:
    return Scene(a=Agent(), b=Agent())


def test_nobody_fetches_before_all_have_uploaded(scene: Scene) -> None:
    assert scene.sent() == {"a": [RESET], "b": [RESET]}
    scene.restart.did("a", RESET)
    assert not scene.restart.is_over(now=1.0)
    assert scene.sent() == {"a": [RESET], "b": [RESET]}
    scene.restart.did("b", RESET)
    assert not scene.restart.is_over(now=2.0)
    assert scene.sent() == {"a": [RESET, GATHER], "b": [RESET, GATHER]}
    scene.restart.did("a", GATHER)
    assert not scene.restart.is_over(now=3.0)
    scene.restart.did("b", GATHER)
    assert scene.restart.is_over(now=4.0)


def test_a_node_that_is_lost_is_waited_for_no_longer(scene: Scene) -> None:
    scene.restart.did("a", RESET)
    del scene.agents["b"]
    assert not scene.restart.is_over(now=1.0)
    scene.restart.did("a", GATHER)
    assert scene.restart.is_over(now=2.0)


def test_one_that_is_not_ready_yet_is_asked_for_nothing_and_one_that_came_meanwhile_fetches() -> None:
    scene = Scene(a=Agent(), late=Agent(ready=False), never=Agent(ready=False))
    scene.restart.did("a", RESET)
    scene.agents["late"].ready = True
    assert not scene.restart.is_over(now=1.0)
    assert scene.sent() == {"a": [RESET, GATHER], "late": [GATHER], "never": []}


def test_an_answer_to_the_step_before_does_not_count(scene: Scene) -> None:
    scene.restart.did("a", RESET)
    scene.restart.did("b", RESET)
    assert not scene.restart.is_over(now=1.0)
    scene.restart.did("a", RESET)
    scene.restart.did("b", RESET)
    assert not scene.restart.is_over(now=2.0)


def test_each_step_has_its_own_time(scene: Scene) -> None:
    scene.restart.did("a", RESET)
    assert scene.restart.late(now=STEP_SECONDS - 1.0) == []
    assert scene.restart.late(now=STEP_SECONDS) == ["b"]
    scene.restart.did("b", RESET)
    assert not scene.restart.is_over(now=STEP_SECONDS)
    scene.restart.did("b", GATHER)
    assert scene.restart.late(now=2 * STEP_SECONDS - 1.0) == []
    assert scene.restart.late(now=2 * STEP_SECONDS) == ["a"]


def test_without_nodes_it_is_over_at_once() -> None:
    assert Scene().restart.is_over(now=0.0)
