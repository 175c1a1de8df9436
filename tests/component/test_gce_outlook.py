"""What `up` finds out before it creates anything."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials

from hvdcloud.checks import Status
from hvdcloud.errors import CapacityError, UsageError
from hvdcloud.providers.gce.api.client import ComputeClient
from hvdcloud.providers.gce.capacity.outlook import Outlook, look_ahead
from tests.support import gce_samples
from tests.support.gce_samples import SETTINGS
from tests.support.scripted_api import Call, Reply, Script, refusal

TODAY = date(2026, 11, 20)
SPEC = replace(gce_samples.SPEC, nodes=4)
ZONES = ("us-central1-a", "us-central1-b", "us-east1-c", "europe-west4-a")


class Api:
    """A project with T4s in three zones, and quota for 16 of them in each region."""

    def __init__(self) -> None:
        self.machine_types = {"n1-standard-8": set(ZONES), "n1-standard-2": set(ZONES)}
        self.t4_zones = {"us-central1-a", "us-central1-b", "us-east1-c"}
        self.t4_quota = {"us-central1": 16.0, "us-east1": 16.0, "europe-west4": 16.0}
        self.gpus_all_regions = 16.0
        self.vms: dict[str, list[dict[str, Any]]] = {}
        self.trouble: dict[str, Reply] = {}
        self.unreachable: list[str] = []
        self.subnetworks: dict[str, str] = {}
        """Region → the network of its subnetwork."""
        self.silent_regions: list[str] = []
        self.calls: list[str] = []
        self._lock = threading.Lock()

    def __call__(self, call: Call) -> Reply:
        what = call.path.rpartition("/")[2]
        with self._lock:
            self.calls.append(what)
        if what in self.trouble:
            return self.trouble[what]
        return Reply(self._content(what))

    def _content(self, what: str) -> dict[str, Any]:
        if what == "p":
            return {"name": "p", "quotas": [{"metric": "GPUS_ALL_REGIONS", "limit": self.gpus_all_regions, "usage": 0}]}
        if what == "regions":
            return {"items": [{"name": region, "quotas": self._quotas(region)} for region in self.t4_quota]}
        if what == "machineTypes":
            there = {
                zone: [{"name": name, "zone": zone} for name, zones in self.machine_types.items() if zone in zones]
                for zone in ZONES
            }
            return self._everywhere(what, there)
        if what == "acceleratorTypes":
            return self._everywhere(what, {zone: [{"name": "nvidia-tesla-t4", "zone": zone}] for zone in self.t4_zones})
        if what == "subnetworks":
            items = {
                f"regions/{region}": {
                    what: [
                        {
                            "name": "nodes",
                            "region": f"…/regions/{region}",
                            "network": f"projects/p/global/networks/{of}",
                        }
                    ]
                }
                for region, of in self.subnetworks.items()
            }
            return {"items": items, "unreachables": [f"projects/p/regions/{each}" for each in self.silent_regions]}
        if what == "instances":
            return self._everywhere(what, self.vms)
        if what == "cos-125-lts":
            link = "https://www.googleapis.com/compute/v1/projects/cos-cloud/global/images/cos-125-19216-0-1"
            return {"name": "cos-125-19216-0-1", "selfLink": link, "diskSizeGb": "10"}
        raise AssertionError(what)

    def _quotas(self, region: str) -> list[dict[str, Any]]:
        return [{"metric": "NVIDIA_T4_GPUS", "limit": self.t4_quota[region], "usage": 0.0}]

    def _everywhere(self, key: str, found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
        items = {f"zones/{zone}": {key: each} for zone, each in found.items()}
        return {"items": items, "unreachables": [f"projects/p/zones/{zone}" for zone in self.unreachable]}


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def client(api: Api) -> Iterator[ComputeClient]:
    script = Script()
    script.handler = api
    yield ComputeClient(project="p", credentials=AnonymousCredentials(), endpoint=script.url, retry_seconds=0)
    script.close()


def check(client: ComputeClient, *, zones: tuple[str, ...] = (), nodes: int = 4, **changes: Any) -> Outlook:
    spec, settings = replace(SPEC, nodes=nodes), replace(SETTINGS, **changes)
    return look_ahead(client, spec, settings, zones=zones, today=TODAY)


def test_all_is_well(client: ComputeClient) -> None:
    found = check(client)
    assert found.problems == []
    assert set(found.zones) == {"us-central1-a", "us-central1-b", "us-east1-c"}
    assert found.zones[:2] == ["us-central1-a", "us-central1-b"]
    assert found.vm_image == "projects/cos-cloud/global/images/cos-125-19216-0-1"


def test_settings_that_cannot_be_are_found_without_asking(client: ComputeClient, api: Api) -> None:
    with pytest.raises(UsageError, match="switched nvidia-tesla-t4 off"):
        look_ahead(client, SPEC, SETTINGS, zones=(), today=date(2027, 8, 1))
    with pytest.raises(UsageError, match="30 s to 120 days"):
        check(client, max_run_seconds=10)
    assert api.calls == []


H100 = {"machine_type": "a3-highgpu-1g", "gpu_type": None, "gpu_count": 0}


@pytest.mark.parametrize("changes", [{"spot": "none"}, {"spot": "workers"}])
def test_a_machine_type_that_is_spot_only_is_not_asked_for_on_demand(
    client: ComputeClient, api: Api, changes: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match="a3-highgpu-1g is available as a Spot VM only") as refused:
        check(client, **H100, **changes)
    assert refused.value.hint == "write gce.spot: all"
    assert api.calls == []


def test_a_chosen_zone_without_the_gpu_is_a_problem_that_names_those_that_have_it(client: ComputeClient) -> None:
    (problem,) = check(client, zones=("us-central1-a", "europe-west4-a")).problems
    assert problem.message == "gce.zones: europe-west4-a has no nvidia-tesla-t4"
    assert problem.hint == "zones that have it: us-central1-a, us-central1-b, us-east1-c"


def test_a_chosen_zone_that_does_not_exist_is_a_problem(client: ComputeClient) -> None:
    (problem,) = check(client, zones=("mars-central1-a",)).problems
    assert problem.message == "gce.zones: mars-central1-a has no nvidia-tesla-t4"


def test_zones_outside_of_the_subnetworks_region_are_a_problem(client: ComputeClient) -> None:
    subnetwork = "projects/p/regions/us-east1/subnetworks/s"
    (problem,) = check(client, zones=("us-central1-a",), subnetwork=subnetwork).problems
    assert "subnetwork" in problem.message


def test_a_zone_that_does_not_answer_is_not_ruled_out(client: ComputeClient, api: Api) -> None:
    api.unreachable = ["europe-west4-a"]
    found = check(client, zones=("europe-west4-a",))
    assert (found.problems, found.zones) == ([], ["europe-west4-a"])


def test_a_region_without_quota_for_all_nodes_is_left_out_and_says_why(client: ComputeClient, api: Api) -> None:
    api.t4_quota["us-central1"] = 3.0
    found = check(client)
    assert found.problems == []
    assert found.zones == ["us-east1-c"]
    said = "room for 4 nodes in us-east1; left out for lack of quota: us-central1: NVIDIA_T4_GPUS 4 needed, 3 of 3 free"
    assert found.findings["quota"].message == said


def test_no_region_with_quota_is_one_problem_with_all_reasons(client: ComputeClient, api: Api) -> None:
    api.t4_quota = dict.fromkeys(api.t4_quota, 0.0)
    found = check(client)
    (problem,) = found.problems
    assert problem.error is CapacityError
    assert "us-central1: NVIDIA_T4_GPUS 4 needed, 0 of 0 free; us-east1:" in problem.message
    assert "quotas?project=p" in problem.hint
    assert found.zones == []


@pytest.mark.parametrize("what", ["p", "regions", "machineTypes", "acceleratorTypes", "instances"])
def test_what_the_api_does_not_answer_stops_nothing(client: ComputeClient, api: Api, what: str) -> None:
    api.trouble[what] = refusal(503, "backendError", "later")
    found = check(client)
    assert found.problems == []
    assert "us-central1-a" in found.zones
    assert any("later" in notice for notice in found.notices)


def test_an_image_that_cannot_be_found_is_a_problem(client: ComputeClient, api: Api) -> None:
    api.trouble["cos-125-lts"] = refusal(404, "notFound", "The resource 'projects/cos-cloud/x' was not found")
    found = check(client)
    assert [problem.error for problem in found.problems] == [UsageError]
    assert found.vm_image == ""


def test_a_cluster_of_this_name_is_seen(client: ComputeClient, api: Api) -> None:
    labels = {"managed-by": "hvdcloud", "hvdcloud-cluster": "digits"}
    api.vms = {"europe-west4-a": [{"name": "digits-0", "zone": "x/zones/europe-west4-a", "labels": labels}]}
    found = check(client).findings["name"]
    assert found.status is Status.WARNING
    assert "exists already" in found.message
    assert "hvdcloud down --name digits" in found.hint


def test_another_users_vm_is_in_the_way_only_where_we_would_go(client: ComputeClient, api: Api) -> None:
    api.vms = {"us-central1-a": [{"name": "digits-1", "zone": "x/zones/us-central1-a"}]}
    found = check(client).findings["name"]
    assert (found.status, found.error) == (Status.FAILED, UsageError)
    assert found.message == "a VM digits-1 that is not hvdcloud's exists in us-central1-a"
    assert check(client, zones=("us-east1-c",)).findings["name"].status is Status.OK


# --- subnetworks of one name in several regions -----------------------------------------------------------------------


def test_a_subnetworks_name_allows_the_regions_that_have_one(client: ComputeClient, api: Api) -> None:
    api.subnetworks = {"us-east1": "mine", "europe-west4": "mine", "us-central1": "another"}
    assert check(client, network="mine", subnetwork="nodes").zones == ["us-east1-c"]
    assert check(client, network="mine", subnetwork="nodes", zones=("us-central1-a", "us-east1-c")).zones == [
        "us-east1-c"
    ]
    (problem,) = check(client, network="mine", subnetwork="nodes", zones=("us-central1-a",)).problems
    assert problem.message == "no zone of gce.zones is in gce.subnetwork's regions europe-west4, us-east1"


def test_a_region_that_does_not_answer_is_not_ruled_out(client: ComputeClient, api: Api) -> None:
    api.subnetworks, api.silent_regions = {"us-east1": "mine"}, ["us-central1"]
    assert "us-central1-a" in check(client, network="mine", subnetwork="nodes").zones


def test_a_subnetwork_that_no_region_has_is_a_problem(client: ComputeClient, api: Api) -> None:
    api.subnetworks = {"us-central1": "another"}
    (problem,) = check(client, network="mine", subnetwork="nodes").problems
    assert problem.message == "network mine has no subnetwork nodes in any region"
    assert problem.hint == "hvdcloud setup makes them; or correct gce.subnetwork"
