"""`build`: from hvdcloud.yaml's image section to an image in the Docker engine."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdcloud import engine
from hvdcloud.image.classic import ClassicBuilder
from hvdcloud.image.lock import alone
from hvdcloud.image.plan import LABEL, ImagePlan, Step, plan_image
from hvdcloud.image.stream import BuildEvent, Progress

if TYPE_CHECKING:
    from hvdcloud.config import ImageConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """An image that is in the engine.

    Attributes:
        reference: what to run: `hvdcloud/project:HASH`. HASH stands for the content: projects with the same share it.
        image_id: the engine's id.
        digest: the registry's (`sha256:…`), if this very image was pushed to or pulled from `image.repository`.
        cached: nothing was built, because the image was there.
        seconds: how long it took.
        steps: Dockerfile steps that the engine went through, those that it had in its cache included.
    """

    reference: str
    image_id: str
    digest: str | None
    cached: bool
    seconds: float
    steps: int


def build(
    image_config: ImageConfig,
    *,
    project_dir: Path,
    progress: Progress,
    cache_from: str | None = None,
) -> BuildResult:
    """Builds the image, unless it is there already.

    Args:
        image_config: the `image` section of hvdcloud.yaml; its paths are relative to `project_dir`.
        progress: called for every step and every line of output.
        cache_from: reference of an image that an earlier build pushed: if it is the one wanted, it is pulled instead.

    Raises:
        UsageError: no such framework and device, or a file that the configuration names is not there.
        NodeError, CredentialsError: the engine, see `engine.connect`.
        ImageError: a step failed; `details` has its last lines.
    """
    started = time.monotonic()
    plan = plan_image(image_config, project_dir=project_dir)
    with contextlib.closing(engine.connect()) as client:
        # Not all of docker-py's methods have types.
        api: Any = client.api
        work = _Work(api=api, plan=plan, progress=progress)
        image_id = _image_id(api, plan.reference)
        cached = image_id is not None
        if image_id is None:
            # Not the engine's own ID: engines that share /etc/docker have the same.
            with alone(progress, engine=os.environ.get("DOCKER_HOST", "")):
                # Another process may have built it while this one waited.
                image_id = _image_id(api, plan.reference) or _pulled(api, cache_from, plan, progress=progress)
                cached = image_id is not None
                image_id = image_id or work.do()
        return BuildResult(
            reference=plan.reference,
            image_id=image_id,
            digest=_digest(api, image_id, repository=image_config.repository),
            cached=cached,
            seconds=time.monotonic() - started,
            steps=work.steps,
        )


def image_reference(image_config: ImageConfig, *, project_dir: Path) -> str:
    """The reference that `build` gives the image; no engine is asked.

    Raises:
        UsageError: no such framework and device, or a file that the configuration names is not there.
    """
    return plan_image(image_config, project_dir=project_dir).reference


@dataclass(slots=True, kw_only=True)
class _Work:
    """Builds the steps of a plan, each only if its image is not there."""

    api: Any
    plan: ImagePlan
    progress: Progress
    steps: int = 0

    def do(self) -> str:
        """Returns the id of the image wanted."""
        self._have(self.plan.last)
        return _tagged(self.api, self.plan.last.reference, self.plan.reference)

    def _have(self, step: Step) -> None:
        if _image_id(self.api, step.reference) is not None:
            return
        for earlier in self.plan.steps:
            if earlier.reference in step.needs:
                self._have(earlier)
        last = 0

        def count(event: BuildEvent) -> None:
            nonlocal last
            last = event.step if event.kind == "step" else last
            self.progress(event)

        self.progress(BuildEvent(kind="image", text=step.what))
        try:
            ClassicBuilder(self.api).build(step, progress=count)
        finally:
            self.steps += last


def _image_id(api: Any, reference: str) -> str | None:
    from docker.errors import ImageNotFound

    try:
        return str(api.inspect_image(reference)["Id"])
    except ImageNotFound:
        return None


def _digest(api: Any, image_id: str, *, repository: str | None) -> str | None:
    if repository is None:
        return None
    for known in api.inspect_image(image_id).get("RepoDigests") or []:
        name, _, digest = known.partition("@")
        if name == repository:
            return str(digest)
    return None


def _tagged(api: Any, image: str, reference: str) -> str:
    """Gives an image that is there another name; returns its id."""
    repository, _, tag = reference.rpartition(":")
    api.tag(image, repository, tag)
    return str(api.inspect_image(reference)["Id"])


def _pulled(api: Any, source: str | None, plan: ImagePlan, *, progress: Progress) -> str | None:
    """Pulls `source`; its id if it is the image wanted, else None: then there is something to build."""
    if source is None:
        return None
    from docker.errors import DockerException
    from docker.utils import parse_repository_tag

    repository, tag = parse_repository_tag(source)
    try:
        for item in api.pull(repository, tag=tag or "latest", stream=True, decode=True):
            if "error" in item:
                progress(BuildEvent(kind="output", text=f"{source} is of no use as a cache: {item['error']}"))
                return None
        labels = api.inspect_image(source)["Config"].get("Labels") or {}
    except DockerException as error:
        progress(BuildEvent(kind="output", text=f"{source} is of no use as a cache: {error}"))
        return None
    if labels.get(LABEL) != plan.digest:
        progress(BuildEvent(kind="output", text=f"{source} holds something else than what is wanted now"))
        return None
    return _tagged(api, source, plan.reference)
