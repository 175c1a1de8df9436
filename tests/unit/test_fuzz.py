"""Nothing that a node, a bucket, a registry or a cloned file says raises anything but an error of ours.

`make fuzz` looks for longer, led by coverage; what it found is a seed here.
"""

from __future__ import annotations

import gc
import json
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.hostile import VALUES, document
from tests.fuzz.targets import TARGETS, run, seeds

SECONDS = 10.0 / len(TARGETS)
"""For each target."""
_SCRIPTS = st.tuples(st.binary(min_size=1, max_size=2), st.binary(min_size=3, max_size=12)).map(b"".join)
_INPUT = st.one_of(_SCRIPTS.map(lambda script: bytes([script[0] % 8]) + script[1:]), st.binary(max_size=300))


@pytest.mark.parametrize("target", TARGETS)
def test_seeds_are_no_findings_any_more(target: str) -> None:
    for seed in seeds(target):
        run(target, seed)


@pytest.mark.parametrize("target", TARGETS)
def test_hostile_input_leads_to_no_unexpected_error(target: str) -> None:
    until = time.monotonic() + SECONDS

    @settings(max_examples=500, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(_INPUT)
    def given_any(data: bytes) -> None:
        # Examples of hypothesis cannot be ended by time; those that come later cost nothing.
        if time.monotonic() < until:
            run(target, data)

    # Objects of other tests, where the stack is at its limit, complain that they cannot be deleted.
    gc.collect()
    gc.disable()
    try:
        given_any()
    finally:
        gc.enable()


@pytest.mark.parametrize("choice", range(len(VALUES)))
def test_every_hostile_value_takes_the_place_of_another(choice: int) -> None:
    told = document(bytes([0, 0, 32, choice]), [{"key": "value"}])
    assert told.startswith(b'{"key": ')
    assert b'"value"' not in told
    if choice < len(VALUES) and not isinstance(VALUES[choice], str):
        json.loads(told)
