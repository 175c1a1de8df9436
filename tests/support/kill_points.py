"""At which of its requests a command is killed: some on every run, all of them by `make nightly`."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Any

import pytest


def kill_points(requests: int) -> Sequence[Any]:
    """Test cases, one for each request: every third and two others at random on every run, the rest is nightly.

    The id of a test names its request, by which it can be repeated.
    """
    # All processes of pytest-xdist collect the same tests.
    chosen = random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID")).sample(range(requests), min(2, requests))
    return [
        pytest.param(number, id=str(number), marks=[] if number % 3 == 0 or number in chosen else pytest.mark.nightly)
        for number in range(requests)
    ]
