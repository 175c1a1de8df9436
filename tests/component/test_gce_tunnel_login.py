"""Whether gcloud, whose tunnels lead to nodes without an external address, has a login that may use them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hvdcloud.checks import Status
from hvdcloud.config.gce import SshConfig
from hvdcloud.errors import CredentialsError
from hvdcloud.providers.gce import ssh_access
from hvdcloud.providers.gce.doctor.permissions import TUNNEL, Login, check_tunnel
from tests.standins.compute import Emulator
from tests.support.gce_bench import Bench
from tests.support.harness import until

USER = "ada@example.com"
"""Whom gcloud has logged in; application default credentials are another account's."""
NO_LOGIN = """\
ERROR: (gcloud.auth.print-access-token) You do not currently have an active account selected.
Please run:

  $ gcloud auth login

to obtain new credentials."""
"""gcloud 528's words."""

Gcloud = Callable[[str], Path]


@pytest.fixture
def gcloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gcloud:
    """A gcloud that does this; returns the file with a line for each call."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def write(script: str) -> Path:
        program = folder / "gcloud"
        program.write_text(f'#!/bin/bash\necho "$@" >>{folder}/calls\n{script}\n')
        program.chmod(0o755)
        return folder / "calls"

    return write


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator() as emulator:
        emulator.access.allow(USER, TUNNEL)
        yield emulator


@pytest.fixture
def login(emulator: Emulator) -> Login:
    return Login(credentials=None, project="test-project", endpoint=emulator.url)


def printing(emulator: Emulator) -> str:
    return f"echo {emulator.keys.issue(USER)[0]}"


def test_an_account_that_may_use_the_tunnel(emulator: Emulator, login: Login, gcloud: Gcloud) -> None:
    calls = gcloud(printing(emulator))
    assert check_tunnel(login) is None
    assert calls.read_text() == "auth print-access-token\n"
    (asked,) = (entry for entry in emulator.log.entries() if entry.method.endswith("testIamPermissions"))
    assert asked.body == {"permissions": [TUNNEL]}


def test_gclouds_account_counts_and_not_the_one_that_makes_vms(
    emulator: Emulator, login: Login, gcloud: Gcloud
) -> None:
    gcloud(printing(emulator))
    emulator.access.deny(USER, TUNNEL)
    found = check_tunnel(login)
    assert found is not None
    assert found.status is Status.WARNING
    assert found.message == (
        f"gcloud's account lacks {TUNNEL} in test-project, without which no tunnel leads to the nodes"
    )
    assert "--role=roles/iap.tunnelResourceAccessor" in found.hint


def test_a_gcloud_without_a_login_says_how_to_get_one(login: Login, gcloud: Gcloud) -> None:
    gcloud(f"cat >&2 <<'END'\n{NO_LOGIN}\nEND\nexit 1")
    with pytest.raises(CredentialsError, match="gcloud has no login that works") as raised:
        check_tunnel(login)
    assert raised.value.hint == "gcloud auth login"
    assert raised.value.details == NO_LOGIN


def test_gcloud_is_not_waited_for_without_limit(login: Login, gcloud: Gcloud, monkeypatch: pytest.MonkeyPatch) -> None:
    gcloud("exec sleep 120")
    monkeypatch.setattr(ssh_access, "TOKEN_SECONDS", 0.3)
    began = time.monotonic()
    assert check_tunnel(login) is None
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("unable", ["off", "no token"])
def test_what_cannot_be_found_out_stops_nothing(emulator: Emulator, login: Login, gcloud: Gcloud, unable: str) -> None:
    gcloud(printing(emulator) if unable == "off" else "echo ya29.unknown")
    if unable == "off":
        emulator.google.off.add("cloudresourcemanager.googleapis.com")
    assert check_tunnel(login) is None


# --- before anything is made ------------------------------------------------------------------------------------------


def test_no_login_is_a_problem_before_anything_is_made_and_only_with_a_tunnel(
    emulator: Emulator, gcloud: Gcloud, tmp_path: Path
) -> None:
    emulator.add_network("mine", {"us-central1": "10.10.0.0/20"})
    bench = Bench(emulator, tmp_path)
    gcloud("echo no >&2; exit 1")
    spec = bench.spec()
    assert bench.provider.preflight(spec) == []
    mine = {"network": "mine", "subnetwork": "mine", "endpoint": emulator.url}
    provider = bench.another(ssh=SshConfig(source="iap"), **mine)
    (problem,) = provider.preflight(spec)
    assert (problem.hint, problem.error) == ("gcloud auth login", CredentialsError)
    gcloud(printing(emulator))
    assert provider.preflight(spec) == []
    assert bench.calls()["compute.instances.bulkInsert"] == 0


def test_gcloud_is_asked_beside_the_api_and_once(
    emulator: Emulator, gcloud: Gcloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_access, "TOKEN_SECONDS", 60)
    emulator.add_network("mine", {"us-central1": "10.10.0.0/20"})
    bench = Bench(emulator, tmp_path)
    mine = {"network": "mine", "subnetwork": "mine", "endpoint": emulator.url}
    provider = bench.another(ssh=SshConfig(source="iap"), **mine)
    both = tmp_path / "both"
    calls = gcloud(f"until [[ -e {both} ]]; do sleep 0.1; done; {printing(emulator)}")
    emulator.faults.add({"hold": "before"}, method="compute.zones.list")
    emulator.access.deny(USER, TUNNEL)

    def meet() -> None:
        """The API's answer and gcloud's each wait for the other to be asked."""
        emulator.faults.wait_held()
        until(calls.exists, seconds=30, what="gcloud to be asked")
        both.touch()
        emulator.faults.release()

    meeting = threading.Thread(target=meet, daemon=True)
    meeting.start()
    spec = bench.spec()
    assert provider.preflight(spec) == []
    meeting.join()
    assert provider.preflight(spec) == []
    assert len(calls.read_text().splitlines()) == 1
    (notice,) = (notice for notice in provider.plan(spec).notices if TUNNEL in notice)
    assert "gcloud projects add-iam-policy-binding test-project" in notice
