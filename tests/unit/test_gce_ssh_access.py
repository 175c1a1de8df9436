"""Who may reach the nodes, and through what."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from pydantic import ValidationError

from hvdcloud.config.gce import SshConfig
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
    def fetch(url: str) -> str:
        if url == ADDRESS_URLS[0]:
            raise OSError("unreachable")
        if url == ADDRESS_URLS[1]:
            return "<html>please log in to this hotel's network</html>"
        return "198.51.100.7"

    assert caller_source("auto", fetch=fetch) == "198.51.100.7/32"


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
    assert caller_source(SshConfig(source=source).source, fetch=nobody) == expected


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
    with pytest.raises(ValidationError, match=said):
        SshConfig(source=source)


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
