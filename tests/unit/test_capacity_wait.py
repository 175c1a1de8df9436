"""The wait of `up --wait`: when it tries again, what it says, and what ends it."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from hvdcloud.cluster.confirm_cost import Consent
from hvdcloud.cluster.model import ClusterSpec, Plan
from hvdcloud.config.model import Config
from hvdcloud.console import Console
from hvdcloud.errors import CapacityError, HvdcloudError, InterruptedByUserError, NodeError, UsageError
from hvdcloud.lifecycle import capacity_wait
from hvdcloud.providers.base import NoRoomError
from tests.support import gce_samples

FULL = {"us-central1-a": "no capacity: ZONE_RESOURCE_POOL_EXHAUSTED", "us-east1-b": "no quota: NVIDIA_T4_GPUS"}


class Clock:
    """Time that passes only in sleep."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []
        self.interrupted_at: float | None = None
        self.on_sleep: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        if self.interrupted_at is not None and self.now + seconds > self.interrupted_at:
            raise KeyboardInterrupt
        self.on_sleep()
        self.slept.append(seconds)
        self.now += seconds


@dataclass
class Experiment:
    """As much of a Context as the wait looks at, and its provider."""

    console: Console
    name: str = "digits"
    config: Config = field(default_factory=lambda: Config.model_validate({"name": "digits"}))
    answers: Iterator[HvdcloudError | None] = field(default_factory=lambda: iter(()))
    dollars: float = 1.0

    @property
    def provider(self) -> Experiment:
        return self

    def plan(self, spec: ClusterSpec) -> Plan:
        if error := next(self.answers, None):
            raise error
        return a_plan(spec, dollars=self.dollars)


def a_plan(spec: ClusterSpec, *, dollars: float = 1.0) -> Plan:
    return Plan(spec=spec, requests=(), dollars_per_hour=dollars, worst_case_dollars=12 * dollars, seconds=43200.0)


PLAN = a_plan(gce_samples.SPEC)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(capacity_wait, "time", clock)
    return clock


@pytest.fixture
def err() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def experiment(err: io.StringIO) -> Experiment:
    return Experiment(console=Console(err=err))


def waiting(experiment: Any, seconds: float, command: str = "up") -> capacity_wait.CapacityWait:
    return capacity_wait.CapacityWait(experiment, Consent(), limit_seconds=seconds, command=command)


def no_room() -> NoRoomError:
    return NoRoomError("no capacity", hint="wait", said=FULL)


def test_without_wait_the_first_failure_is_the_last(experiment: Experiment, clock: Clock, err: io.StringIO) -> None:
    with pytest.raises(NoRoomError):
        waiting(experiment, 0).next_plan(PLAN, no_room())
    assert (clock.slept, err.getvalue()) == ([], "")


def test_pauses_grow_to_five_minutes_and_the_last_try_is_at_the_end(experiment: Experiment, clock: Clock) -> None:
    wait = waiting(experiment, 1000)
    ids = {PLAN.spec.id}
    for _ in range(6):
        found = wait.next_plan(PLAN, no_room())
        ids.add(found.spec.id)
        assert found.spec.created > PLAN.spec.created
    with pytest.raises(NoRoomError):
        wait.next_plan(PLAN, no_room())
    assert clock.slept == [30, 60, 120, 240, 300, 250]
    assert len(ids) == 7  # Each try is a cluster of its own.


@pytest.mark.parametrize("error", [NodeError("no network", hint=""), CapacityError("others hold the quota", hint="")])
def test_passing_trouble_ends_no_wait(
    experiment: Experiment, clock: Clock, err: io.StringIO, error: HvdcloudError
) -> None:
    experiment.answers = iter([error])
    waiting(experiment, 600).next_plan(PLAN, no_room())
    assert clock.slept == [30, 60]
    assert f"digits: {error.message}; next try in 60 s" in err.getvalue()


def test_what_will_not_change_ends_the_wait(experiment: Experiment, clock: Clock) -> None:
    experiment.answers = iter([UsageError("the name is taken", hint="")])
    with pytest.raises(UsageError):
        waiting(experiment, 600).next_plan(PLAN, no_room())


def test_what_became_dearer_has_to_be_agreed_to(experiment: Experiment, clock: Clock) -> None:
    limits = experiment.config.limits.model_copy(update={"ask_above": 20.0})
    experiment.config = experiment.config.model_copy(update={"limits": limits})
    waiting(experiment, 600).next_plan(PLAN, no_room())
    experiment.dollars = 5.0
    with pytest.raises(UsageError, match="may cost"):
        waiting(experiment, 600).next_plan(PLAN, no_room())


@pytest.mark.parametrize("command", ["up", "launch"])
def test_ctrl_c_is_one_line(experiment: Experiment, clock: Clock, command: str) -> None:
    clock.interrupted_at = 40.0
    wait = waiting(experiment, 600, command)
    wait.next_plan(PLAN, no_room())
    with pytest.raises(InterruptedByUserError) as caught:
        wait.next_plan(PLAN, no_room())
    assert caught.value.message == f"{command} of digits was interrupted while waiting for room; nothing of it is left"
    assert caught.value.hint == f"hvdcloud {command} --wait 6h starts again"
