"""`build --remote` against the stand-in of Cloud Build, which builds on this machine's engine: what is built, sent and
shown, and every way in which it can go wrong."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.config.model import ImageConfig, RemoteBuildConfig
from hvdcloud.errors import (
    CapacityError,
    CredentialsError,
    HvdcloudError,
    ImageError,
    InterruptedByUserError,
    UsageError,
)
from hvdcloud.google import grants, http
from hvdcloud.google.registry_hosts import GOOGLE_REGISTRIES_VARIABLE
from hvdcloud.image.cloudbuild.build import RemoteBuilder, RemoteResult
from hvdcloud.image.cloudbuild.client import CloudBuild
from hvdcloud.image.cloudbuild.source import send
from hvdcloud.image.engine_stream import BuildEvent, ignore
from hvdcloud.image.plan.steps import ImagePlan
from hvdcloud.image.publish.registry import digest_at_registry
from hvdcloud.storage.base import ObjectInfo
from hvdcloud.storage.gcs import GcsBucket
from hvdcloud.storage.open import open_bucket
from tests.standins.cloudbuild import BUILDER
from tests.standins.cloudbuild.errors import PERMISSION_DENIED, QUOTA_RESTRICTED, service_disabled
from tests.standins.cloudbuild.place import PROJECT, Place, building_place
from tests.standins.cloudbuild.plans import PIP_HINT, tiny_plan
from tests.standins.registry import free_port, google_like_registry
from tests.support.harness import until

pytestmark = pytest.mark.engine

METHOD = "cloudbuild.projects.locations.builds."
FAILING = "FROM debian:bookworm-slim AS builder\nRUN echo three lines before && {} && exit 7\n"


@dataclass
class Laptop:
    """A user who builds remotely."""

    place: Place
    repository: str
    config: ImageConfig = field(default_factory=ImageConfig)
    events: list[BuildEvent] = field(default_factory=list)
    on_event: Callable[[BuildEvent], None] = lambda _: None
    settled_at: float = 0.0

    def build(self, plan: ImagePlan, *, repository: str | None = None) -> RemoteResult:
        return self.builder().build(plan, repository=repository or self.repository)

    def builder(self) -> RemoteBuilder:
        import google.auth

        def progress(event: BuildEvent) -> None:
            self.events.append(event)
            self.on_event(event)

        credentials, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
        client = CloudBuild(
            project=PROJECT,
            region="us-central1",
            credentials=credentials,
            endpoint=self.place.server.url,
            on_retry=lambda _: None,
            retry_seconds=5,
        )
        buckets = [self.bucket(seconds) for seconds in (10.0, 0.2)]
        return RemoteBuilder(
            client=client,
            bucket=buckets[0],
            log_bucket=buckets[1],
            config=self.config,
            progress=progress,
            poll_seconds=0.05,
            settled_at=self.settled_at,
        )

    def bucket(self, seconds: float = 10.0) -> GcsBucket:
        bucket = open_bucket("gs://bucket/runs", endpoint=self.place.storage.url, retry_seconds=seconds)
        assert isinstance(bucket, GcsBucket)
        return bucket

    def said(self, *kinds: str) -> list[str]:
        return [event.text for event in self.events if not kinds or event.kind in kinds]

    def steps(self) -> list[list[str]]:
        """The ids of the steps of every build there was."""
        return [[step["id"] for step in build["steps"]] for build in self.place.server.builds()]

    def uploads(self) -> int:
        """How many sources were sent."""
        return sum(
            method == "POST" and "/upload/" in path and "uploadType=media" not in path
            for method, path, _, _ in self.place.storage.requests
        )

    def failure(self, plan: ImagePlan, kind: type[HvdcloudError]) -> HvdcloudError:
        with pytest.raises(kind) as raised:
            self.build(plan)
        assert type(raised.value) is kind
        return raised.value


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with building_place(tmp_path_factory.mktemp("place"), time_scale=0.01, log_seconds=0.02) as place:
        yield place


@pytest.fixture
def place(shared: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    for name, value in shared.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(http, "RETRY_BASE_SECONDS", 0.01)
    shared.server._builds.clear()
    shared.server.entries.clear()
    shared.storage.requests.clear()
    yield shared
    shared.server.faults.clear()
    shared.storage.faults.clear()
    shared.server.ends.clear()
    shared.server.queue_seconds = 0.0
    shared.storage.authorize = None


@pytest.fixture
def laptop(place: Place) -> Laptop:
    return Laptop(place, f"{place.registry}/hvdcloud/t{secrets.token_hex(4)}")


@pytest.fixture(scope="module")
def built(shared: Place) -> str:
    """A repository with all images of a plan."""
    repository = f"{shared.registry}/hvdcloud/t{secrets.token_hex(4)}"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in shared.environ.items():
            patch.setenv(name, value)
        Laptop(shared, repository).build(tiny_plan("1"))
    return repository


@pytest.fixture
def again(place: Place, built: str) -> Laptop:
    """The user of that repository."""
    return Laptop(place, built)


def one_layer(**changes: str) -> ImagePlan:
    """A plan of whose images that repository has all but the last."""
    old, new = tiny_plan("1"), tiny_plan(secrets.token_hex(4), **changes)
    return replace(new, steps=(*old.steps[:2], replace(new.last, arguments=old.last.arguments)))


# --- what is built, and what is not -----------------------------------------------------------------------------------


def test_the_digest_is_the_registrys_own_and_the_log_is_shown(laptop: Laptop) -> None:
    result = laptop.build(tiny_plan("1"))
    assert result.reference == f"{laptop.repository}:1"
    assert result.digest == digest_at_registry(result.reference)
    assert not result.cached
    assert laptop.steps() == [["builder", "push-builder", "base", "push-base", "project"]]
    shown = laptop.said("image")
    for what in ("the compilers", "pushing the compilers", "the layer for requirements.txt", "pushing the image"):
        assert shown.count(what) == 1, shown
    steps = [(event.step, event.steps, event.text) for event in laptop.events if event.kind == "step"]
    assert (2, 2, "COPY compiled /compiled") in steps
    assert len(steps) == len(set(steps))


def test_what_is_at_the_registry_is_not_built_again(again: Laptop) -> None:
    result = again.build(tiny_plan("1"))
    assert (result.digest, result.cached) == (digest_at_registry(f"{again.repository}:1"), True)
    assert again.steps() == []


def test_changed_requirements_cost_one_layer_and_send_one_file(again: Laptop) -> None:
    plan = one_layer(requirements="scikit-learn")
    result = again.build(plan)
    assert again.steps() == [["project"]]
    assert result.digest == digest_at_registry(f"{again.repository}:{plan.digest}")
    # With a single step Cloud Build's log names none.
    assert "the layer for requirements.txt" in again.said("image")


def test_a_repository_with_a_tag_of_its_own_follows_what_is_built(again: Laptop) -> None:
    mine, plan = f"{again.repository}:mine", one_layer(requirements="other")
    first = again.build(one_layer(), repository=mine)
    assert digest_at_registry(mine) == first.digest
    second = again.build(plan, repository=mine)
    assert digest_at_registry(mine) == second.digest != first.digest
    assert again.build(plan, repository=mine).cached


def test_an_unchanged_source_is_sent_once(laptop: Laptop) -> None:
    laptop.place.server.ends.append("INTERNAL_ERROR")
    plan = tiny_plan("1", requirements=secrets.token_hex())
    laptop.failure(plan, ImageError)
    laptop.build(plan)
    assert len(laptop.steps()) == 2
    assert laptop.uploads() == 1


def test_two_who_send_the_same_source_at_once_build_from_one(laptop: Laptop) -> None:
    context = tiny_plan("1", requirements=secrets.token_hex()).last.context
    first: list[ObjectInfo] = []
    sent = send(
        laptop.bucket(), context, progress=lambda _: first.append(send(laptop.bucket(), context, progress=ignore))
    )
    assert sent == first[0] == send(laptop.bucket(), context, progress=ignore)


def test_a_log_is_read_on_from_where_it_was(laptop: Laptop) -> None:
    bucket, name = laptop.bucket(), f"log-{secrets.token_hex(4)}"
    assert bucket.read_from(name, 0) == b""
    for text, start, new in ((b"one", 0, b"one"), (b"one two", 3, b" two"), (b"one two", 7, b"")):
        bucket.write(name, text)
        assert bucket.read_from(name, start) == new


def test_what_only_this_machines_network_needs_is_not_sent(again: Laptop) -> None:
    show = 'ARG BASE\nFROM debian:bookworm-slim\nCOPY ca-bundle.crt /\nRUN echo "<$(cat /ca-bundle.crt)>" && false\n'
    again.failure(one_layer(project=show), ImageError)
    assert "<>" in again.said("output")
    again.config = ImageConfig(ca_bundle="corporate.pem")
    again.failure(one_layer(project=show), ImageError)
    assert "<of this machine's network>" in again.said("output")


# --- trouble on the way: built once all the same ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "action",
    [
        {"reset": "before"},
        {"reset": "after"},
        {"status": 503, "effect": True},
        {"status": 500},
        {"status": 429},
    ],
    ids=json.dumps,
)
def test_a_lost_answer_does_not_build_twice(laptop: Laptop, action: dict[str, Any]) -> None:
    laptop.place.server.faults.add(action, method=f"{METHOD}create")
    laptop.place.server.ends.append("INTERNAL_ERROR")
    assert "INTERNAL_ERROR" in laptop.failure(tiny_plan("1"), ImageError).message
    assert len(laptop.steps()) == 1


def test_polling_continues_through_trouble(again: Laptop) -> None:
    again.place.server.queue_seconds = 0.5
    again.place.server.faults.add({"status": 503}, method=f"{METHOD}get", skip=1, times=2)
    again.place.server.faults.add({"reset": "before"}, method=f"{METHOD}get", skip=2, times=2)
    assert again.build(one_layer()).digest
    assert len(again.steps()) == 1
    assert "waiting for a machine" in again.said("image")


def test_a_log_that_cannot_be_read_for_a_while_is_shown_once_and_whole(laptop: Laptop) -> None:
    laptop.place.storage.fault(path="log-", method="GET", action={"status": 503}, times=3, skip=1)
    laptop.build(tiny_plan("1"))
    (log,) = [name for name in laptop.place.objects() if name.endswith(f"{laptop.place.server.builds()[0]['id']}.txt")]
    written = laptop.bucket().read(log.removeprefix("runs/")).decode()
    pushed = [line for line in laptop.said("output") if "digest: sha256" in line]
    assert [line for line in pushed if line in written] == pushed
    assert len(pushed) == len(set(pushed)) == 3


def test_a_log_that_may_not_be_read_is_no_reason_to_fail(again: Laptop) -> None:
    again.place.storage.fault(path="log-", method="GET", action={"status": 403}, times=1000)
    assert again.build(one_layer()).digest
    (_, warning) = again.said("warning")
    assert "roles/storage.objectAdmin" in warning


def test_a_build_that_is_on_its_way_is_followed_not_built_again(again: Laptop) -> None:
    again.place.server.queue_seconds = 1.0
    plan = one_layer()

    def die(event: BuildEvent) -> None:
        if event.text == "waiting for a machine":
            raise SystemExit  # As a again does whose battery is empty.

    with pytest.raises(SystemExit):
        Laptop(again.place, again.repository, on_event=die).build(plan)
    result = again.build(plan)
    assert result.digest == digest_at_registry(result.reference)
    assert len(again.steps()) == 1
    assert any(text.startswith("it is being built already") for text in again.said("image"))


def test_a_build_for_another_repository_is_not_followed(again: Laptop) -> None:
    again.place.server.queue_seconds = 1.0
    other = Laptop(again.place, f"{again.repository}-other")
    plan = one_layer()
    other.on_event = lambda event: (_ for _ in ()).throw(SystemExit) if event.text.startswith("waiting") else None
    with pytest.raises(SystemExit):
        other.build(plan)
    again.build(plan)
    assert len(again.steps()) == 2


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------


def interrupt_at(text: str) -> Callable[[BuildEvent], None]:
    def interrupt(event: BuildEvent) -> None:
        if event.text.startswith(text):
            raise KeyboardInterrupt

    return interrupt


def test_ctrl_c_cancels_the_build_and_says_so(laptop: Laptop) -> None:
    sleeping = "FROM debian:bookworm-slim AS builder\nRUN sleep 60\n"
    laptop.on_event = interrupt_at("RUN sleep")
    error = laptop.failure(tiny_plan("1", builder=sleeping), InterruptedByUserError)
    (build,) = laptop.place.server.builds()
    assert error.message == f"build {build['id']} of hvdcloud/project:1 is cancelled"
    until(lambda: "finishTime" in laptop.place.server.builds()[0], seconds=20, what="the end of the build")
    assert laptop.place.server.builds()[0]["status"] == "CANCELLED"
    assert digest_at_registry(f"{laptop.repository}:1") is None


def test_ctrl_c_before_there_is_a_build_leaves_none(laptop: Laptop) -> None:
    laptop.on_event = interrupt_at("sending ")
    plan = tiny_plan("1", requirements=secrets.token_hex())
    assert "no build was started" in laptop.failure(plan, InterruptedByUserError).message
    assert laptop.place.server.builds() == []


def test_ctrl_c_leaves_a_build_alone_that_another_user_started(laptop: Laptop) -> None:
    laptop.place.server.queue_seconds = 1.0
    plan = tiny_plan("1")
    theirs = Laptop(laptop.place, laptop.repository)
    theirs.on_event = lambda event: (_ for _ in ()).throw(SystemExit) if event.text.startswith("waiting") else None
    with pytest.raises(SystemExit):
        theirs.build(plan)
    laptop.on_event = interrupt_at("waiting for a machine")
    laptop.failure(plan, InterruptedByUserError)
    assert laptop.place.server.asked("cancel") == []


# --- what is wrong with the build -------------------------------------------------------------------------------------


def test_a_step_that_fails_is_shown_with_its_last_lines(laptop: Laptop) -> None:
    error = laptop.failure(tiny_plan("1", builder=FAILING.format("echo the reason")), ImageError)
    assert "the compilers was not built: at step 2/2: RUN echo three lines before" in error.message
    assert "returned a non-zero code: 7" in error.message
    assert error.details.splitlines() == ["three lines before", "the reason"]


def test_what_pip_says_is_the_reason_and_what_was_built_before_is_kept(laptop: Laptop) -> None:
    said = "ERROR: No matching distribution found for nothing"
    plan = tiny_plan("1", project="ARG BASE\n" + FAILING.format(f"echo {said}"))
    for steps in (["builder", "push-builder", "base", "push-base", "project"], ["project"]):
        error = laptop.failure(plan, ImageError)
        assert "pip: No matching distribution found for nothing" in error.message
        assert (error.hint, laptop.steps()[-1]) == (PIP_HINT, steps)


def test_a_buildkit_log_is_understood_too(again: Laptop) -> None:
    plain = "\\n".join(
        [
            "#5 [project 2/3] COPY a /a",
            "#5 DONE 0.1s",
            "#6 [project 3/3] RUN pip install nothing",
            "#6 0.412 looking for it",
            "#6 1.003 ERROR: No matching distribution found for nothing",
        ]
    )
    again.failure(one_layer(project="ARG BASE\n" + FAILING.format(f'printf "{plain}\\n"')), ImageError)
    instruction = "RUN pip install nothing"
    assert BuildEvent(kind="step", text=instruction, step=3, steps=3, stage=instruction) in again.events
    assert "looking for it" in again.said("output")
    assert "ERROR: No matching distribution found for nothing" in again.said("output")


@pytest.mark.parametrize(
    ("end", "kind", "said"),
    [
        ("TIMEOUT", ImageError, "took longer than 7200s"),
        ("INTERNAL_ERROR", ImageError, "failed (INTERNAL_ERROR): a scripted end"),
        ("EXPIRED", CapacityError, "waited longer than 3600s for a machine"),
        ("CANCELLED", ImageError, "was cancelled, not from here"),
    ],
)
def test_an_end_without_an_image(laptop: Laptop, end: str, kind: type[HvdcloudError], said: str) -> None:
    laptop.place.server.ends.append(end)
    assert said in laptop.failure(tiny_plan("1"), kind).message


def test_another_user_may_cancel_it(laptop: Laptop) -> None:
    def cancel(event: BuildEvent) -> None:
        if event.text.startswith("RUN sleep"):
            laptop.place.server.cancel(laptop.place.server.builds()[0]["id"])

    laptop.on_event = cancel
    plan = tiny_plan("1", builder="FROM debian:bookworm-slim AS builder\nRUN sleep 60\n")
    assert "was cancelled, not from here" in laptop.failure(plan, ImageError).message


# --- roles and settings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "kind", "hint"),
    [
        (service_disabled(PROJECT), CredentialsError, f"enable cloudbuild.googleapis.com --project={PROJECT}"),
        (PERMISSION_DENIED, CredentialsError, "roles/cloudbuild.builds.editor"),
        ({"status": 401}, CredentialsError, "name another key in GOOGLE_APPLICATION_CREDENTIALS"),
        (QUOTA_RESTRICTED, CapacityError, "image.remote.region"),
        ({"status": 404, "message": "Requested entity was not found."}, UsageError, "image.remote.region"),
        ({"status": 400, "message": "invalid machine"}, UsageError, "correct image.remote"),
        (
            {"status": 403, "message": "caller does not have permission to act as service account 12"},
            CredentialsError,
            "roles/iam.serviceAccountUser",
        ),
    ],
    ids=lambda value: str(value.get("message", value.get("status")))[:30] if isinstance(value, dict) else None,
)
def test_what_is_refused_says_which_role_or_setting(
    laptop: Laptop, fault: dict[str, Any], kind: type[HvdcloudError], hint: str
) -> None:
    laptop.place.server.faults.add(fault, method=f"{METHOD}create", times=None)
    assert hint in laptop.failure(tiny_plan("1"), kind).hint
    assert laptop.place.server.builds() == []


def test_a_service_that_is_down_is_given_up_in_time(laptop: Laptop) -> None:
    laptop.place.server.faults.add({"status": 503}, method=f"{METHOD}list", times=None)
    error = laptop.failure(tiny_plan("1"), ImageError)
    assert "Cloud Build answers 503" in error.message


def test_an_account_that_may_not_use_the_bucket_needs_a_role_there(laptop: Laptop) -> None:
    laptop.place.storage.authorize = lambda token: not token
    error = laptop.failure(tiny_plan("1"), CredentialsError)
    assert "could not resolve source" in error.message
    assert error.hint == "hvdcloud setup makes an account that may build, and sets image.remote.service_account"
    warned = [event.text for event in laptop.events if event.kind == "warning"]
    assert [text.partition(":")[0] for text in warned] == ["image.remote.service_account is not set"]
    # With an account, it is this one that needs a role.
    laptop.config = ImageConfig(remote=RemoteBuildConfig(service_account="mine@test-project.iam.gserviceaccount.com"))
    laptop.events.clear()
    assert "roles/storage.admin on the bucket" in laptop.failure(tiny_plan("1"), CredentialsError).hint
    assert [event for event in laptop.events if event.kind == "warning"] == []


def test_an_account_that_setup_has_just_made_is_waited_for(again: Laptop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grants, "PAUSE_SECONDS", 0.1)
    again.place.storage.authorize = lambda token: not token
    again.settled_at = time.time() + 60

    def arrive(event: BuildEvent) -> None:
        if event.text.startswith("not allowed yet"):
            again.place.storage.authorize = None

    again.on_event = arrive
    assert again.build(one_layer()).digest.startswith("sha256:")
    assert "not allowed yet: what setup grants takes minutes to hold; trying again for 1 min" in again.said("image")


def test_an_account_that_may_not_push_needs_a_role_at_the_registry(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, token_port = free_port(), free_port()

    def allowed(token: str) -> tuple[str, ...]:
        asking = place.server.keys.check(f"Bearer {token}")
        return ("pull",) if asking == BUILDER else ("pull", "push")

    monkeypatch.setenv(GOOGLE_REGISTRIES_VARIABLE, f"127.0.0.1:{port}")
    with ExitStack() as stack:
        stack.enter_context(
            google_like_registry(tmp_path, allowed, addresses=["127.0.0.1"], port=port, token_port=token_port)
        )
        laptop = Laptop(place, f"127.0.0.1:{port}/hvdcloud/digits")
        for plan in (tiny_plan("1"), tiny_plan("1", builder="FROM scratch AS builder\nCOPY compiled /\n")):
            error = laptop.failure(plan, CredentialsError)
            assert "may not push the image: " in error.message
            assert "hvdcloud setup makes an account that may build" in error.hint
