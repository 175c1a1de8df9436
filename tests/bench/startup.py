"""How long the commands take to say `--help`, beside a Python that does nothing."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.bench.measure import run
from tests.bench.workplace import HVDCLOUD, TORCHX_BIN

ROUNDS = 25
WARM_UPS = 2


def commands() -> Mapping[str, Sequence[str | Path]]:
    """What is started, by its title."""
    return {
        "python -c pass": [sys.executable, "-c", "pass"],
        "hvdcloud --help": [HVDCLOUD, "--help"],
        "torchx --help": [TORCHX_BIN / "torchx", "--help"],
    }


def measure() -> dict[str, list[float]]:
    """Seconds of every start, one command after the other in each round."""
    found: dict[str, list[float]] = {title: [] for title in commands()}
    for turn in range(WARM_UPS + ROUNDS):
        for title, argv in commands().items():
            seconds = run(argv).seconds
            if turn >= WARM_UPS:
                found[title].append(seconds)
    return found
