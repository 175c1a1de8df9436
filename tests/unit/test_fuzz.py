"""Nothing that a node, a bucket or a cloned file says raises anything but an error of ours.

`make fuzz` looks for longer, led by coverage; what it found is a seed here.
"""

from __future__ import annotations

import gc
import random

import pytest

from tests.fuzz.hostile import SCRIPTS
from tests.fuzz.targets import TARGETS, seeds

INPUTS = 100
SEED = 1


def hostile_input(chance: random.Random) -> bytes:
    """A short script that damages a valid document, or any bytes."""
    if chance.random() < 0.5:
        # Several targets' own first byte says which document it is.
        head = bytes(chance.randrange(SCRIPTS) for _ in range(chance.randint(1, 2)))
        return head + chance.randbytes(chance.randint(3, 12))
    return chance.randbytes(chance.randint(0, 300))


@pytest.mark.parametrize("target", TARGETS)
def test_seeds_are_no_findings_any_more(target: str) -> None:
    for seed in seeds(target):
        TARGETS[target](seed)


@pytest.mark.parametrize("target", TARGETS)
def test_hostile_input_leads_to_no_unexpected_error(target: str) -> None:
    # Objects of other tests, where the stack is at its limit, complain that they cannot be deleted.
    gc.collect()
    gc.disable()
    chance = random.Random(f"{SEED} {target}")
    try:
        for _ in range(INPUTS):
            data = hostile_input(chance)
            try:
                TARGETS[target](data)
            except Exception as error:
                raise AssertionError(f"add this to tests/fuzz/seeds/{target}/: {data!r}") from error
    finally:
        gc.enable()
