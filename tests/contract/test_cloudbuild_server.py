"""The stand-in of Cloud Build is as strict as it says and really builds: asked over plain HTTP."""

from __future__ import annotations

import gzip
import io
import secrets
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import requests

from hvdcloud.storage.open import open_bucket
from tests.standins.cloudbuild.build import DOCKER, OVER
from tests.standins.cloudbuild.errors import service_disabled
from tests.standins.cloudbuild.place import PROJECT, Place, building_place
from tests.support.harness import until

pytestmark = pytest.mark.engine

BUILDS = f"/v1/projects/{PROJECT}/locations/us-central1/builds"
SCRATCH = "FROM scratch\nCOPY greeting /\n"


@dataclass
class Client:
    """A caller with a token."""

    place: Place

    def __call__(self, method: str, path: str, body: Any = None, **options: Any) -> requests.Response:
        token = self.place.server.keys.issue("somebody@example.com")[0]
        headers = {"Authorization": f"Bearer {token}"}
        url = self.place.server.url + path
        return requests.request(method, url, json=body, headers=headers, timeout=30, **options)

    def error(self, method: str, path: str, body: Any = None) -> tuple[int, str, str]:
        answer = self(method, path, body)
        error = answer.json()["error"]
        assert error["code"] == answer.status_code
        return answer.status_code, error["status"], error["message"]

    def create(self, **request: Any) -> str:
        """Starts a build; its id."""
        answer = self("POST", BUILDS, {"steps": [{"name": DOCKER, "args": ["version"]}], **request})
        assert answer.status_code == 200, answer.text
        build: str = answer.json()["metadata"]["build"]["id"]
        return build

    def get(self, build_id: str) -> dict[str, Any]:
        build: dict[str, Any] = self("GET", f"{BUILDS}/{build_id}").json()
        return build

    def ended(self, build_id: str) -> dict[str, Any]:
        return until(lambda: self._over(build_id), seconds=60, what=f"the end of build {build_id}")

    def _over(self, build_id: str) -> dict[str, Any] | None:
        build = self.get(build_id)
        return build if build["status"] in OVER else None

    def source(self, **files: str) -> dict[str, Any]:
        """Puts an archive into the bucket; what names it."""
        data = io.BytesIO()
        with gzip.open(data, "wb") as packed, tarfile.open(fileobj=packed, mode="w") as archive:
            for name, text in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text.encode()))
        name = f"source-{secrets.token_hex(4)}.tar.gz"
        made = open_bucket("gs://bucket", endpoint=self.place.storage.url).write(name, data.getvalue())
        return {"storageSource": {"bucket": "bucket", "object": name, "generation": str(made.generation)}}

    def log(self, build_id: str) -> list[str]:
        name = f"logs/log-{build_id}.txt"
        return open_bucket("gs://bucket", endpoint=self.place.storage.url).read(name).decode().splitlines()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with building_place(tmp_path_factory.mktemp("place"), time_scale=0.01) as place:
        yield place


@pytest.fixture
def client(place: Place) -> Iterator[Client]:
    yield Client(place)
    place.server.faults.clear()
    place.server.queue_seconds = 0.0


def build_step(tag: str, **more: Any) -> dict[str, Any]:
    return {"id": "image", "name": DOCKER, "args": ["build", "--tag", tag, "."], **more}


# --- it builds --------------------------------------------------------------------------------------------------------


def test_a_build_is_fetched_built_and_pushed(client: Client, place: Place) -> None:
    image = f"{place.registry}/team/app:v1"
    source = client.source(Dockerfile=SCRATCH, greeting="hello")
    build = client.ended(client.create(source=source, steps=[build_step(image)], images=[image]))
    assert build["status"] == "SUCCESS", build
    (pushed,) = build["results"]["images"]
    manifest = requests.head(
        f"http://{place.registry}/v2/team/app/manifests/v1",
        headers={"Accept": "application/vnd.docker.distribution.manifest.v2+json"},
        timeout=10,
    )
    assert pushed["digest"] == manifest.headers["Docker-Content-Digest"]
    assert pushed["name"] == image
    assert set(build["timing"]) == {"FETCHSOURCE", "BUILD", "PUSH"}
    assert build["sourceProvenance"]["resolvedStorageSource"] == source["storageSource"]
    assert build["createTime"] <= build["startTime"] <= build["finishTime"]
    assert build["name"] == f"projects/123456789012/locations/us-central1/builds/{build['id']}"


@pytest.mark.engine(alone=True)  # Another build would leave images.
def test_nothing_of_a_build_is_left_on_the_engine(client: Client, place: Place, engine: Any) -> None:
    image = f"{place.registry}/team/gone:v1"
    before = {found.id for found in engine.images.list(all=True)}
    source = client.source(
        Dockerfile=f"{SCRATCH}FROM scratch\nCOPY --from=0 /greeting /\n", greeting=secrets.token_hex()
    )
    assert client.ended(client.create(source=source, steps=[build_step(image)], images=[image]))["status"] == "SUCCESS"
    left = [found for found in engine.images.list(all=True) if found.id not in before]
    assert not [found for found in left if "greeting" in str(found.history())]


def test_a_step_runs_in_its_folder_with_its_environment(client: Client) -> None:
    source = client.source(**{"app/Dockerfile": SCRATCH})
    step = {"name": DOCKER, "dir": "app", "args": ["build", "."], "env": ["DOCKER_BUILDKIT=nonsense"]}
    build_id = client.create(source=source, steps=[step], logsBucket="gs://bucket/logs")
    build = client.ended(build_id)
    assert (build["status"], build["steps"][0]["status"]) == ("FAILURE", "FAILURE")
    assert any("nonsense" in line for line in client.log(build_id)), client.log(build_id)


def test_the_log_of_several_steps_says_which_one_speaks(client: Client) -> None:
    steps = [{"id": "first", "name": DOCKER, "args": ["--version"]}, {"name": DOCKER, "args": ["--version"]}]
    build_id = client.create(steps=steps, logsBucket="gs://bucket/logs")
    assert client.ended(build_id)["status"] == "SUCCESS"
    begin, *lines = client.log(build_id)
    assert begin == f'starting build "{build_id}"'
    version = subprocess.run(["docker", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    assert lines == [
        "",
        "BUILD",
        'Starting Step #0 - "first"',
        f'Step #0 - "first": Already have image (with digest): {DOCKER}',
        f'Step #0 - "first": {version}',
        'Finished Step #0 - "first"',
        "Starting Step #1",
        f"Step #1: Already have image (with digest): {DOCKER}",
        f"Step #1: {version}",
        "Finished Step #1",
        "DONE",
    ]


def test_the_log_of_one_step_has_nothing_before_its_lines(client: Client) -> None:
    build_id = client.create(logsBucket="gs://bucket/logs")
    client.ended(build_id)
    assert f"Already have image (with digest): {DOCKER}" in client.log(build_id)


# --- it fails as the real one does ------------------------------------------------------------------------------------


def test_a_step_that_fails_ends_the_build(client: Client) -> None:
    steps = [{"name": DOCKER, "args": ["nonsense"]}, {"name": DOCKER, "args": ["--version"]}]
    build_id = client.create(steps=steps, logsBucket="gs://bucket/logs")
    build = client.ended(build_id)
    assert [step.get("status") for step in build["steps"]] == ["FAILURE", None]
    assert build["failureInfo"]["type"] == "USER_BUILD_STEP"
    assert client.log(build_id)[-2:] == [
        "ERROR",
        f'ERROR: build step 0 "{DOCKER}" failed: step exited with non-zero status: {build["steps"][0]["exitCode"]}',
    ]


def test_an_image_that_is_not_there_is_not_pushed(client: Client, place: Place) -> None:
    build = client.ended(client.create(images=[f"{place.registry}/team/never:v1"]))
    assert (build["status"], build["failureInfo"]["type"]) == ("FAILURE", "PUSH_IMAGE_NOT_FOUND")


def test_a_step_image_other_than_dockers_is_not_there(client: Client) -> None:
    build = client.ended(client.create(steps=[{"name": "gcr.io/cloud-builders/gcloud"}]))
    assert build["status"] == "FAILURE"
    assert build["statusDetail"].startswith('error pulling build step 0 "gcr.io/cloud-builders/gcloud"')


def test_a_build_that_takes_longer_than_it_may_is_ended(client: Client) -> None:
    source = client.source(Dockerfile="FROM debian:bookworm-slim\nRUN sleep 60\n")
    build = client.ended(client.create(source=source, steps=[build_step("t-cloudbuild")], timeout="100s"))
    assert (build["status"], build["steps"][0]["status"]) == ("TIMEOUT", "TIMEOUT")


def test_a_build_waits_in_the_queue_and_can_be_cancelled_there(client: Client, place: Place) -> None:
    place.server.queue_seconds = 60
    build_id = client.create()
    assert client.get(build_id)["status"] == "QUEUED"
    assert client("POST", f"{BUILDS}/{build_id}:cancel", {}).json()["status"] == "CANCELLED"
    assert "startTime" not in client.ended(build_id)


def test_a_build_that_waits_too_long_expires(client: Client, place: Place) -> None:
    place.server.queue_seconds = 0.2
    assert client.ended(client.create(queueTtl="10s"))["status"] == "EXPIRED"


def test_cancelling_ends_a_step_that_runs(client: Client) -> None:
    source = client.source(Dockerfile="FROM debian:bookworm-slim\nRUN sleep 60\n")
    build_id = client.create(source=source, steps=[build_step("t-cloudbuild")], logsBucket="gs://bucket/logs")
    place = client.place
    until(lambda: f"logs/log-{build_id}.txt" in place.objects(), seconds=20, what="the log")
    until(lambda: any("sleep" in line for line in client.log(build_id)), seconds=20, what="the step")
    assert client("POST", f"{BUILDS}/{build_id}:cancel", {}).status_code == 200
    until(lambda: "finishTime" in client.get(build_id), seconds=20, what="the end")
    assert client.get(build_id)["status"] == "CANCELLED"
    assert client.error("POST", f"{BUILDS}/{build_id}:cancel", {})[:2] == (400, "FAILED_PRECONDITION")


# --- what it refuses --------------------------------------------------------------------------------------------------


REFUSED: list[tuple[Mapping[str, Any], str]] = [
    ({"steps": []}, "at least one step"),
    ({"unknown": 1}, 'Unknown name "unknown"'),
    ({"status": "SUCCESS"}, "output only"),
    ({"timeout": "1 hour"}, "google-duration"),
    ({"timeout": "86401s"}, "invalid timeout"),
    ({"options": {"machineType": "n1-standard-8"}}, "Not one of"),
    ({"options": {"diskSizeGb": "5000"}}, "disk size"),
    ({"tags": ["a b"]}, "invalid build tags"),
    ({"images": ["Not An Image"]}, "invalid image name"),
    ({"steps": [{"name": DOCKER, "args": ["$HOME"]}]}, 'key in the template "HOME" is not a valid built-in'),
    ({"serviceAccount": "projects/p/serviceAccounts/a@b"}, "the build must either (a) specify 'build.logs_bucket'"),
    ({"logsBucket": "gs://nobodys"}, "builder service account does not have access to the bucket"),
    ({"source": {"storageSource": {"bucket": "bucket", "object": "no.tar.gz"}}}, "could not resolve source: googleapi"),
]


@pytest.mark.parametrize(("request_", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_is_not_well_formed_is_refused(client: Client, request_: Mapping[str, Any], said: str) -> None:
    status, name, message = client.error("POST", BUILDS, {"steps": [{"name": DOCKER}], **request_})
    assert (status, name) == (400, "INVALID_ARGUMENT")
    assert said in message


def test_a_dollar_sign_that_is_doubled_is_one(client: Client) -> None:
    build_id = client.create(steps=[{"name": DOCKER, "args": ["$$5", "${PROJECT_ID}"]}])
    assert client.get(build_id)["steps"][0]["args"] == ["$5", PROJECT]


def test_nobody_without_a_token_gets_in(place: Place) -> None:
    answer = requests.get(place.server.url + BUILDS, timeout=10)
    assert (answer.status_code, answer.json()["error"]["status"]) == (401, "UNAUTHENTICATED")


@pytest.mark.parametrize(
    "path",
    ["/v1/projects/other/locations/global/builds", "/v1/projects/test-project/locations/Mars/builds", f"{BUILDS}/x"],
)
def test_what_is_not_there_is_not_found(client: Client, path: str) -> None:
    assert client.error("GET", path)[:2] == (404, "NOT_FOUND")


def test_a_method_that_is_not_implemented_says_so(client: Client) -> None:
    assert client.error("POST", f"{BUILDS}/x:retry", {})[:2] == (501, "UNIMPLEMENTED")


def test_an_unknown_parameter_is_refused(client: Client) -> None:
    assert client.error("GET", f"{BUILDS}?limit=3")[:2] == (400, "INVALID_ARGUMENT")


# --- lists and faults -------------------------------------------------------------------------------------------------


def test_builds_are_listed_by_tag_the_newest_first_page_by_page(client: Client) -> None:
    tag = f"t-{secrets.token_hex(4)}"
    made = [client.create(tags=[tag, str(number)]) for number in range(3)]

    def ids(query: str) -> list[str]:
        return [build["id"] for build in client("GET", f"{BUILDS}?{query}").json().get("builds", [])]

    assert ids(f'filter=tags="{tag}"') == made[::-1]
    assert ids(f'filter=tags="{tag}" AND tags="1"') == [made[1]]
    assert ids('filter=tags="nobody"') == []
    first = client("GET", f'{BUILDS}?filter=tags="{tag}"&pageSize=2').json()
    assert ids(f'filter=tags="{tag}"&pageSize=2&pageToken={first["nextPageToken"]}') == [made[0]]
    assert client.error("GET", f"{BUILDS}?filter=tags:x")[0] == 400


def test_an_old_path_is_for_the_location_global(client: Client) -> None:
    old = f"/v1/projects/{PROJECT}/builds"
    build_id = client("POST", old, {"steps": [{"name": DOCKER}]}).json()["metadata"]["build"]["id"]
    assert client("GET", f"{old}/{build_id}").status_code == 200
    assert client("GET", f"/v1/projects/{PROJECT}/locations/global/builds/{build_id}").status_code == 200
    assert client("GET", f"{BUILDS}/{build_id}").status_code == 404


def test_the_fault_plan(client: Client, place: Place) -> None:
    faults, create = place.server.faults, "cloudbuild.projects.locations.builds.create"
    faults.add(service_disabled(PROJECT), method=create)
    answer = client("POST", BUILDS, {"steps": [{"name": DOCKER}]})
    assert answer.status_code == 403
    assert answer.json()["error"]["details"][0]["reason"] == "SERVICE_DISABLED"
    before = len(place.server.builds())
    for when, made in (("before", 0), ("after", 1)):
        faults.add({"reset": when}, method=create)
        with pytest.raises(requests.ConnectionError):
            client("POST", BUILDS, {"steps": [{"name": DOCKER, "args": ["--version"]}]})
        assert len(place.server.builds()) == before + made
    place.server.ends.append("INTERNAL_ERROR")
    assert client.ended(client.create())["status"] == "INTERNAL_ERROR"


def test_a_schema_error_of_its_own_would_be_a_failure(client: Client, place: Place) -> None:
    build_id = client.create()
    client.ended(build_id)
    place.server._builds[build_id].resource["steps"][0]["status"] = "NONSENSE"
    status, name, message = client.error("GET", f"{BUILDS}/{build_id}")
    assert (status, name) == (500, "INTERNAL")
    assert "NONSENSE" in message
