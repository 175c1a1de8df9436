"""Labels of containers → clusters: anybody who may make a container writes them."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest

from hvdcloud.cli.cluster import show_clusters
from hvdcloud.cluster.model import Cluster
from hvdcloud.cluster.state import as_known_here
from hvdcloud.console import Console
from hvdcloud.errors import CapacityError, HvdcloudError, NodeError, UsageError
from hvdcloud.providers.base import Listing
from hvdcloud.providers.engine.view import EngineObjects, describe_clusters, engine_refused, node_of

LABELS = {
    "managed-by": "hvdcloud",
    "hvdcloud-cluster": "digits",
    "hvdcloud-owner": "ada",
    "hvdcloud-id": "0a1b2c",
    "hvdcloud-nodes": "1",
    "hvdcloud-node": "0",
    "hvdcloud-created": "1790000000",
}


def container(**labels: str) -> dict[str, Any]:
    ours = {**LABELS, **{f"hvdcloud-{key}": value for key, value in labels.items()}}
    return {"Id": "c", "Names": ["/digits-0"], "State": "running", "Created": 1790000000, "Labels": ours}


def clusters(*containers: dict[str, Any]) -> dict[str, Cluster]:
    found = describe_clusters(EngineObjects(containers=containers), provider="local", describe=node_of)
    return {each.name: each for each in found}


NUMBERS = ["9" * 5000, "9" * 63, "9" * 18, "-1", "1e9", "inf", "nan", "", "x", "²", "\x1b[2J"]
NAMES = ["", "..", "../../x", "a\0b", "x" * 5000, "\x1b[2J", "\u202ex", "\ud800"]


@pytest.mark.usefixtures("state_root")
@pytest.mark.parametrize(
    ("label", "values"), [("created", NUMBERS), ("nodes", NUMBERS), ("node", NUMBERS), ("cluster", NAMES)]
)
def test_whatever_a_label_says_its_cluster_is_shown_and_hides_no_other(label: str, values: list[str]) -> None:
    for value in values:
        found = clusters(container(), container(**{"cluster": "evil", label: value}))
        evil = found[value if label == "cluster" else "evil"]
        assert found["digits"].whole
        assert 0 <= evil.expected_nodes < 10**18
        out = io.StringIO()
        show_clusters(Console(out=out), Listing(clusters=tuple(map(as_known_here, found.values()))))
        lines = [line.split() for line in out.getvalue().splitlines()]
        assert ["digits", "1/1", "whole", *["0.00"] * 3, "ada", "2026-09-21", "14:13:20Z"] in lines
        assert not {"\x1b", "\u202e"} & set(out.getvalue())
        if label == "created":
            assert ["cannot", "be", "read"] in [line[-3:] for line in lines]
        elif label == "nodes":
            assert not evil.whole


@pytest.mark.parametrize(
    ("said", "kind", "hint"),
    [
        ("mkdir /var/lib/docker/overlay2/a: no space left on device", CapacityError, "docker system df"),
        ("all predefined address pools have been fully subnetted", CapacityError, "docker network prune"),
        (
            'could not select device driver "nvidia" with capabilities: [[gpu compute utility]]',
            NodeError,
            "apt install nvidia-container-toolkit",
        ),
        ("network hvdcloud-digits is ambiguous (2 matches found on name)", UsageError, "hvdcloud list"),
        ("invalid mount config", NodeError, "fix the cause, then hvdcloud up again"),
    ],
)
def test_what_the_engine_refuses_is_explained_with_the_next_command(
    said: str, kind: type[HvdcloudError], hint: str
) -> None:
    error = engine_refused("container digits-0", SimpleNamespace(explanation=said))

    assert type(error) is kind
    assert error.message.startswith("container digits-0: ")
    assert hint in error.hint
