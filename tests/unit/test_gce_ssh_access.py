"""Who may reach the nodes, and through what."""

from __future__ import annotations

import shlex
import threading
from pathlib import Path

import pytest

from hvdcloud.errors import UsageError
from hvdcloud.providers.gce.ssh_access import (
    ADDRESS_URLS,
    caller_source,
    check_gcloud,
    iap_proxy_command,
)


def nobody(url: str) -> str:
    raise AssertionError(f"{url} was asked")


def test_the_first_service_that_answers_with_an_address_is_believed() -> None:
    done = threading.Event()

    def fetch(url: str) -> str:
        if url == ADDRESS_URLS[0]:
            raise OSError("unreachable")
        if url == ADDRESS_URLS[1]:
            return "<html>please log in to this hotel's network</html>"
        return "198.51.100.7"

    def one_is_slow(url: str) -> str:
        if url != ADDRESS_URLS[1]:
            done.wait(60)
        return "203.0.113.9"

    assert caller_source("auto", fetch=fetch) == "198.51.100.7/32"
    assert caller_source("auto", fetch=one_is_slow) == "203.0.113.9/32"
    done.set()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("198.51.100.0/24", "198.51.100.0/24"),
        ("198.51.100.7/24", "198.51.100.0/24"),
        ("198.51.100.7", "198.51.100.7/32"),
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("iap", "iap"),
    ],
)
def test_a_range_is_normalised(source: str, expected: str) -> None:
    assert caller_source(source, fetch=nobody) == expected


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("0.0.0.0/0", "whole internet"),
        ("1.2.3.4/0", "whole internet"),
        ("::/0", "whole internet"),
        ("2001:db8::/32", "IPv4"),
        ("office", "neither auto nor iap nor a CIDR"),
        ("198.51.100.0/33", "neither auto nor iap nor a CIDR"),
    ],
)
def test_a_range_that_lets_everybody_in_or_nobody_is_refused(source: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        caller_source(source, fetch=nobody)
    assert "gce.ssh.source" in raised.value.hint


def test_the_tunnel_is_gclouds_with_every_word_quoted() -> None:
    command = iap_proxy_command("example.com:lab", "us-central1-a", "digits-0", 2222)
    assert shlex.split(command) == [
        "gcloud", "compute", "start-iap-tunnel", "digits-0", "2222", "--listen-on-stdin",
        "--project=example.com:lab", "--zone=us-central1-a", "--verbosity=error",
    ]  # fmt: skip
    assert shlex.split(iap_proxy_command("p", "z", "x; rm -rf /", 1))[3] == "x; rm -rf /"


def test_a_tunnel_without_gcloud_is_a_problem_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="no gcloud") as raised:
        check_gcloud()
    assert "cloud.google.com/sdk" in raised.value.hint
