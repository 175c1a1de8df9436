"""A price table whose figures are easy to add up by hand, newer than any that hvdcloud comes with.

A node of the samples is an n1-standard-2 (2 vCPUs, 7.5 GB) with a T4, a disk of 100 GB and an external address:

    us-central1   2 x 0.030 + 7.5 x 0.004 + 0.35 + 100 x 0.0730 / 730 + 0.010 = 0.09  + 0.35 + 0.010 + 0.010 = 0.46
    us-west1      2 x 0.045 + 7.5 x 0.006 + 0.45 + 100 x 0.0876 / 730 + 0.013 = 0.135 + 0.45 + 0.012 + 0.013 = 0.61

Nothing is known of any other region.
"""

from __future__ import annotations

import json
from pathlib import Path

NODE = 0.46
"""Dollars an hour in us-central1."""
DISK = 0.01
"""Of those, the disk's."""
DISK_WEST = 0.012

_TABLE = {
    "as_of": "2030-01-02",
    "region": "us-central1",
    "regions": {
        "us-central1": {
            "n1-vcpu": [0.030, 0.010],
            "n1-gb": [0.004, 0.002],
            "nvidia-tesla-t4": [0.35, 0.10],
            "disk-gb-month": [0.073, 0.073],
            "local-ssd-gb-month": [0.08, 0.048],
            "address": [0.010, 0.005],
        },
        "us-west1": {
            "n1-vcpu": [0.045, 0.015],
            "n1-gb": [0.006, 0.003],
            "nvidia-tesla-t4": [0.45, 0.15],
            "disk-gb-month": [0.0876, 0.0876],
            "address": [0.013, 0.006],
        },
    },
}


def write_prices(state: Path) -> None:
    """Into a state folder, as `hvdcloud offers --refresh` would."""
    state.mkdir(parents=True, exist_ok=True)
    (state / "prices.json").write_text(json.dumps(_TABLE), encoding="utf-8")
