"""What the steps run on, and what that costs by hvdcloud's own price table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hvdcloud.providers.gce.plan import budget
from hvdcloud.providers.gce.settings import settings_of
from hvdcloud.units import counted, dollars
from tests.support.configs import load_config


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One cluster's life.

    Attributes:
        minutes: it is expected to exist.
        keys: of hvdcloud.yaml, dotted, that differ from the other steps'.
    """

    name: str
    what: str
    nodes: int
    minutes: float
    keys: Mapping[str, Any]

    @property
    def environ(self) -> dict[str, str]:
        """The keys as hvdcloud reads them from the environment."""
        keys = {"nodes": self.nodes, **self.keys}
        return {f"HVDCLOUD_{key.upper().replace('.', '__')}": json.dumps(value) for key, value in keys.items()}


STEPS = (
    Step(
        name="cpu",
        what="2 n1-standard-1: up right after setup, run, pull, down",
        nodes=2,
        minutes=10,
        keys={"run.command": "python allreduce.py"},
    ),
    Step(
        name="spot",
        what="2 n1-standard-1, one of them Spot: it is lost, and resize makes it again",
        nodes=2,
        minutes=15,
        keys={
            "gce.provisioning": "spot",
            "run.command": "python elastic_job.py --epochs 100000 --pause 0.1",
            "run.elastic": {"min": 1, "max": 2},
        },
    ),
    Step(
        name="gpu",
        what="1 Spot n1-standard-4 with a T4: nvidia-smi and an all-reduce",
        nodes=1,
        minutes=15,
        keys={
            "gce.provisioning": "spot",
            "gce.machine_type": "n1-standard-4",
            "gce.gpu": {"type": "nvidia-tesla-t4", "count": 1},
            "image.device": "cuda",
            "image.version": "2.7.1",
            "run.command": "python gpu_job.py",
        },
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Dollars, as expected and if every VM lives as long as it is allowed to."""

    expected: float
    worst: float


def price(steps: Sequence[Step], keys: Mapping[str, Any], *, region: str) -> Price:
    """By the table that `up` uses; the traffic, a few cents, is not in it.

    Args:
        keys: of hvdcloud.yaml that all steps have; `limits.max_run_duration` bounds the worst case.
    """
    expected = worst = 0.0
    for step in steps:
        base = {f"HVDCLOUD_{key.upper().replace('.', '__')}": json.dumps(value) for key, value in keys.items()}
        config = load_config(environ={**base, **step.environ})
        settings = settings_of(
            config.gce, config.limits, project="", ssh_source="0.0.0.0/0", elastic=config.run.elastic is not None
        )
        per_hour = budget.dollars_per_hour(settings, range(step.nodes), zone=f"{region}-a")
        assert per_hour is not None
        expected += per_hour * step.minutes / 60
        worst += per_hour * settings.max_run_seconds / 3600
    return Price(expected=expected, worst=worst)


def question(steps: Sequence[Step], cost: Price, *, project: str, minutes: int) -> str:
    """What is asked before anything is made."""
    lines = [f"In project {project}, on Google's own servers:"]
    lines += [f"  {step.name:5} {step.what}" for step in steps]
    lines += [
        f"The VMs cost about {dollars(cost.expected)}, at worst {dollars(cost.worst)};",
        "the bucket, the images and their traffic add a few cents.",
        f"After {counted(minutes, 'minute')} everything is deleted, whatever has happened by then,",
        "and no VM lives longer by Compute Engine's own limit.",
        "hvdcloud must not be set up in the project yet; afterwards it is as before.",
    ]
    return "\n".join(lines) + "\n"
