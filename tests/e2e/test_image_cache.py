"""Images that another machine has built: a registry as the cache of builds, and published ones. With two engines."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import requests

from hvdcloud import engine as engines
from hvdcloud.image.build import published
from hvdcloud.image.build.builder import BuildResult, Options, carry_out
from hvdcloud.image.engine_reports import BuildEvent
from hvdcloud.image.plan.context import Context, Entry, Step
from hvdcloud.image.plan.steps import ImagePlan
from tests.standins.registry import running_registry
from tests.support.engines import SecondEngine, same_image_on_both, second_engine
from tests.support.harness import tags_of
from tools import published as tool

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def other_engine() -> Iterator[SecondEngine]:
    with second_engine(bridge=True) as found:
        yield found


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory, other_engine: SecondEngine) -> Iterator[int]:
    """Of a registry that both engines reach, this machine's at 127.0.0.1 and the other at its gateway."""
    folder = tmp_path_factory.mktemp("registry")
    with running_registry(folder, {}, addresses=("127.0.0.1", other_engine.gateway)) as host:
        yield int(host.rpartition(":")[2])


class Project:
    """A plan like a project's: builder, base and the layer with requirements. Its images are like no other's.

    Args:
        name: of the repository that is the cache.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.salt = secrets.token_hex(6)
        self.requirement = "one"
        self.builder_arguments: dict[str, str] = {}
        self.made: set[str] = set()

    def plan(self) -> ImagePlan:
        builder = self._step(
            "builder",
            "the compilers",
            "FROM debian:bookworm-slim\nARG PIP_INDEX_URL\nRUN echo compiled > /made\n",
            arguments=self.builder_arguments,
        )
        base = self._step(
            "base",
            "the base image",
            f"FROM {builder.reference} AS builder\nFROM debian:bookworm-slim\nCOPY --from=builder /made /made\n",
            needs=(builder.reference,),
        )
        project = self._step(
            "project",
            "the layer",
            f"FROM {base.reference} AS requirements\nRUN echo {self.requirement} > /wanted\n"
            f"FROM {base.reference}\nCOPY --from=requirements /wanted /wanted\n",
            needs=(base.reference,),
        )
        return ImagePlan(reference=f"hvdcloud/project:{project.context.digest()}", steps=(builder, base, project))

    def _step(self, kind: str, what: str, dockerfile: str, **more: Any) -> Step:
        sent = Context(hashed=(Entry(path="Dockerfile", content=dockerfile.encode()),), salt=(self.salt,))
        tag = sent.digest() if kind == "project" else f"torch-1-cpu-{sent.digest()}"
        return Step(reference=f"hvdcloud/{kind}:{tag}", what=what, context=sent, dockerfile="Dockerfile", **more)


@pytest.fixture
def project(engine: Any) -> Iterator[Project]:
    found = Project(f"cache/t{secrets.token_hex(4)}")
    yield found
    for tag in sorted(tags_of(engine)):
        if tag in found.made or f"/{found.name}:" in tag:
            engine.images.remove(tag, force=True)


@pytest.fixture
def publish(project: Project, port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Publishes the base image of the project's plan, as `make publish-images` does a row's."""
    monkeypatch.setattr(published, "dockerfiles", lambda: tmp_path)
    (tmp_path / published.FILE).write_text("# Nothing yet.\n")

    def call() -> dict[str, str]:
        plan, repository = project.plan(), f"127.0.0.1:{port}/{project.name}"
        project.made.update(step.reference for step in plan.steps)
        digests = tool.publish(plan.until(plan.steps[1]), repository, progress=lambda event: None)
        (tmp_path / published.FILE).write_text(tool.lines(digests))
        monkeypatch.setenv(published.PUBLISHED_VARIABLE, repository)
        return digests

    return call


def job(
    project: Project,
    *,
    source: str | None = None,
    target: str | None = None,
) -> tuple[BuildResult, list[BuildEvent]]:
    """One build on the engine that DOCKER_HOST names."""
    events: list[BuildEvent] = []
    plan = project.plan()
    project.made.update(step.reference for step in plan.steps)
    client = engines.connect()
    try:
        result = carry_out(client.api, plan, Options(progress=events.append, cache_from=source, cache_to=target))
    finally:
        client.close()
    # That another process builds on this engine is no matter here.
    return result, [event for event in events if not event.text.startswith("waiting for another")]


def seen(result: BuildResult) -> dict[str, Any]:
    """The image as the engine that DOCKER_HOST names has it."""
    with contextlib.closing(engines.connect()) as client:
        found: dict[str, Any] = client.api.inspect_image(result.image_id)
        return found


def texts(events: Sequence[BuildEvent], kind: str) -> list[str]:
    return [event.text for event in events if event.kind == kind]


def tags(port: int, project: Project) -> set[str]:
    listed = requests.get(f"http://127.0.0.1:{port}/v2/{project.name}/tags/list", timeout=300)
    return set(listed.json().get("tags") or ())


def tag_of(step: Step) -> str:
    """In the cache."""
    kind, _, tag = step.reference.removeprefix("hvdcloud/").partition(":")
    return tag if kind == "project" else f"{kind}-{tag}"


def names(part: str) -> set[str]:
    """What the engine that DOCKER_HOST names calls its images, as far as `part` is in it."""
    with contextlib.closing(engines.connect()) as client:
        return {tag for tag in tags_of(client) if part in tag}


def test_the_next_job_pulls_what_it_needs_and_builds_nothing_but_a_changed_layer(
    project: Project, port: int, other_engine: SecondEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = (f"{host}:{port}/{project.name}" for host in ("127.0.0.1", other_engine.gateway))
    first, events = job(project, target=here)
    made = seen(first)
    assert texts(events, "image")[:3] == ["the compilers", "the base image", "the layer"]
    builder, base, layer = project.plan().steps
    assert tags(port, project) == {tag_of(builder), tag_of(base), tag_of(layer)}

    # The second engine has neither debian:bookworm-slim nor a network: it can only pull from the cache.
    monkeypatch.setenv("DOCKER_HOST", other_engine.docker_host)
    same, events = job(project, source=there)
    assert same.cached
    assert same_image_on_both(made, seen(same))
    assert names("hvdcloud/builder") == names("hvdcloud/base") == set(), "what is not needed is not pulled"
    assert any(text.startswith("from the cache: ") for text in texts(events, "output"))

    project.requirement = "two"
    changed, events = job(project, source=there, target=there)
    assert texts(events, "image")[0] == "the layer"
    assert not changed.cached
    assert changed.reference != same.reference
    assert not any("compiled" in event.text for event in events)
    pulled = [text for text in texts(events, "output") if text.startswith("from the cache")]
    assert pulled == [f"from the cache: {there}:{tag_of(base)}, the base image"]
    # Its own layer is stored for the next job.
    assert tag_of(project.plan().last) in tags(port, project)


def test_an_index_with_a_password_is_not_in_the_cache(project: Project, port: int) -> None:
    project.builder_arguments = {"PIP_INDEX_URL": "https://someone:hunter2@index.example/simple"}
    _, events = job(project, target=f"127.0.0.1:{port}/{project.name}")
    [warning] = texts(events, "warning")
    assert warning.startswith("the compilers is not in the cache: its history holds the password of a package index")
    assert "hunter2" not in warning
    content = project.plan().reference.partition(":")[2]
    assert {tag.partition("-")[0] for tag in tags(port, project)} == {"base", content}


# --- published images -------------------------------------------------------------------------------------------------


def test_what_is_published_is_pulled_when_it_is_needed_and_nothing_else_is_built(
    project: Project, publish: Any, port: int, other_engine: SecondEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder, base, layer = project.plan().steps
    assert publish().keys() == {base.reference}
    assert names(f"/{project.name}:") == set(), "publishing leaves no name behind"
    assert layer.reference not in names("hvdcloud/project:")

    # This engine has neither debian:bookworm-slim nor a network: it can build nothing but the layer.
    monkeypatch.setenv("DOCKER_HOST", other_engine.docker_host)
    monkeypatch.setenv(published.PUBLISHED_VARIABLE, f"{other_engine.gateway}:{port}/{project.name}")
    result, events = job(project)
    assert texts(events, "image") == ["pulling the base image, published", "the layer"]
    assert builder.reference not in names("hvdcloud/builder:")
    assert texts(events, "warning") == []
    assert not any("compiled" in event.text for event in events)
    assert seen(result)["Config"]["Labels"][published.RECIPE_LABEL] == base.reference
    assert names(project.name) == set(), "an image has the step's name alone, so that `make clean-images` removes it"


@pytest.mark.parametrize(
    "cause", ["another recipe", "unknown digest", pytest.param("no registry", marks=pytest.mark.nightly)]
)
def test_what_can_not_be_pulled_is_built_and_one_line_says_why(
    project: Project, publish: Any, cause: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    [(old_base, digest)] = publish().items()
    project.salt = secrets.token_hex(6)
    base = project.plan().steps[1]
    lines = {base.reference: digest}
    if cause == "unknown digest":
        lines = dict.fromkeys(lines, f"sha256:{secrets.token_hex(32)}")
    (tmp_path / published.FILE).write_text(tool.lines(lines))
    if cause == "no registry":
        monkeypatch.setenv(published.PUBLISHED_VARIABLE, "127.0.0.1:1/nobody")

    result, events = job(project)
    assert not result.cached
    asked, *built = texts(events, "image")
    assert asked == "pulling the base image, published"
    assert built == ["the compilers", "the base image", "the layer"]
    [warning] = texts(events, "warning")
    assert warning.startswith("the base image is built here although it is published (Horovod, where it is compiled: ")
    why = {
        "another recipe": f"is {old_base}, not {base.reference}",
        "unknown digest": "unknown",
        "no registry": "127.0.0.1:1",
    }
    assert why[cause] in warning
