"""Lists, places and quotas of the stand-in of Compute Engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.standins.compute import Delays, Emulator
from tests.support.compute_clients import LABELS, ZONE, Plain

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def shared() -> Iterator[Emulator]:
    with Emulator(delays=Delays(start=0.005, create=0.01, delete=0.01, other=0.01)) as emulator:
        yield emulator


@pytest.fixture
def plain(shared: Emulator) -> Iterator[Plain]:
    shared.reset()
    with Plain(shared) as client:
        yield client


# -- lists ---------------------------------------------------------------------------------------------------------


def test_pages_have_everything_once(plain: Plain) -> None:
    plain.up(*(f"run-{number}" for number in range(5)))
    plain.up("other", zone="us-east1-b")
    token, found, pages = None, [], 0
    while pages == 0 or token:
        more = {"pageToken": token} if token else {}
        page = plain("GET", "aggregated/instances", maxResults=2, **more).json
        found += [vm["name"] for scope in page["items"].values() for vm in scope.get("instances", [])]
        token, pages = page.get("nextPageToken"), pages + 1
    assert found == ["run-0", "run-1", "run-2", "run-3", "run-4", "other"]
    assert pages == 3
    first = plain("GET", "aggregated/instances", maxResults=2).json["nextPageToken"]
    assert plain("GET", "aggregated/instances", pageToken=first, filter="name=x").status == 400


def test_empty_scopes_say_so(plain: Plain) -> None:
    scope = plain("GET", "aggregated/instances").json["items"][f"zones/{ZONE}"]
    assert scope["warning"]["code"] == "NO_RESULTS_ON_PAGE"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("labels.cluster=run", ["a", "b"]),
        ("labels.cluster:*", ["a", "b", "c"]),
        ("labels.none:*", []),
        ("NOT labels.cluster=run", ["c", "d"]),
        ("-labels.cluster:*", ["d"]),
        ("labels.cluster!=run", ["c", "d"]),
        ("(labels.cluster=run) AND (name=a)", ["a"]),
        ("(labels.cluster=run) (name=a)", ["a"]),
        ("name=a OR name=c AND labels.cluster=other", ["c"]),
        ("name = \"a\" OR name='d'", ["a", "d"]),
        ("status=RUNNING name>b", ["c", "d"]),
        ("scheduling.automaticRestart=false", ["a", "b", "c", "d"]),
        ("tags.items=x", []),
        ('name eq ".*\\bb.*"', ["b"]),
        ("name ne a|b", ["c", "d"]),
        ('(status eq RUNNING)(labels.cluster eq "r.n")', ["a", "b"]),
        ("scheduling.automaticRestart eq false", ["a", "b", "c", "d"]),
        ("labels.cluster ne run", ["c", "d"]),
    ],
)
def test_filters(plain: Plain, text: str, names: list[str]) -> None:
    for name, labels in (("a", LABELS), ("b", LABELS), ("c", {"cluster": "other"}), ("d", {})):
        plain.up(name, labels=labels)
    found = plain("GET", f"zones/{ZONE}/instances", filter=text).json.get("items", [])
    assert [vm["name"] for vm in found] == names


@pytest.mark.parametrize(
    "text",
    ["name", "name=", "(name=a", "name=a)", "=a", "name=a OR", "name=a ][", "name eq [", "name eq a OR name eq b"],
)
def test_malformed_filters(plain: Plain, text: str) -> None:
    assert plain("GET", f"zones/{ZONE}/instances", filter=text).status == 400


def test_an_unreachable_zone_is_left_out_and_named(plain: Plain) -> None:
    plain.up("run-0")
    plain.emulator.set_unreachable(ZONE, True)
    answer = plain("GET", "aggregated/instances").json
    assert answer["unreachables"] == [f"zones/{ZONE}"]
    assert answer["items"][f"zones/{ZONE}"]["warning"]["code"] == "UNREACHABLE"
    assert plain("DELETE", f"zones/{ZONE}/instances/run-0").status == 503
    plain.emulator.set_unreachable(ZONE, True, says=["list"])
    assert f"zones/{ZONE}" not in plain("GET", "aggregated/instances").json["items"]
    plain.emulator.set_unreachable(ZONE, False)
    assert plain.instance("run-0")["status"] == "RUNNING"


def test_what_is_where(plain: Plain) -> None:
    gpus = plain("GET", "aggregated/acceleratorTypes", filter="name=nvidia-tesla-t4").json["items"]
    assert gpus[f"zones/{ZONE}"]["acceleratorTypes"][0]["deprecated"]["state"] == "DEPRECATED"
    gone = plain("GET", "zones/us-central1-c/acceleratorTypes/nvidia-tesla-p100").json
    assert gone["deprecated"]["state"] == "OBSOLETE"
    kind = plain("GET", f"zones/{ZONE}/machineTypes/g2-standard-24").json
    assert kind["accelerators"] == [{"guestAcceleratorType": "nvidia-l4", "guestAcceleratorCount": 2}]
    image = plain.send("GET", "/compute/v1/projects/cos-cloud/global/images/family/cos-125-lts").json
    assert image["name"].startswith("cos-125-")


# -- quotas --------------------------------------------------------------------------------------------------------


def test_a_quota_that_does_not_suffice_fails_the_vms_and_says_which(plain: Plain) -> None:
    plain.emulator.set_quota("NVIDIA_T4_GPUS", 1, region="us-central1")
    operation = plain.up("run-0", "run-1")
    error = operation["error"]["errors"][-1]
    assert (error["code"], operation["httpErrorStatusCode"]) == ("QUOTA_EXCEEDED", 403)
    assert error["message"] == "Quota 'NVIDIA_T4_GPUS' exceeded.  Limit: 1.0 in region us-central1."
    assert error["errorDetails"][0]["quotaInfo"]["dimensions"] == {"region": "us-central1"}
    assert plain.emulator.state.left() == []
    assert "error" not in plain.up("run-0")
    quotas = {one["metric"]: one for one in plain("GET", "regions/us-central1").json["quotas"]}
    assert (quotas["NVIDIA_T4_GPUS"]["usage"], quotas["SSD_TOTAL_GB"]["usage"], quotas["CPUS"]["usage"]) == (1, 100, 4)


def test_spot_draws_from_its_own_quota_if_there_is_one(plain: Plain) -> None:
    scheduling = {
        "provisioningModel": "SPOT",
        "onHostMaintenance": "TERMINATE",
        "automaticRestart": False,
        "instanceTerminationAction": "DELETE",
    }
    plain.up("run-0", scheduling=scheduling)
    plain.emulator.set_quota("PREEMPTIBLE_NVIDIA_T4_GPUS", 4, region="us-central1")
    quotas = {one["metric"]: one["usage"] for one in plain("GET", "regions/us-central1").json["quotas"]}
    assert (quotas["NVIDIA_T4_GPUS"], quotas["PREEMPTIBLE_NVIDIA_T4_GPUS"]) == (0, 1)
