"""`build`: from hvdcloud.yaml's image section to an image in the Docker engine."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdcloud import engine
from hvdcloud.errors import ImageError
from hvdcloud.image import context, stream, versions
from hvdcloud.image.lock import alone
from hvdcloud.image.sources import Sources, download_arguments, find_sources
from hvdcloud.image.stream import BuildEvent, Progress

if TYPE_CHECKING:
    from hvdcloud.config import ImageConfig

# Compiling Horovod and unpacking torch say nothing for minutes.
SILENCE_SECONDS = 1800
# Containers inherit an image's labels: none of those that mark a cluster's objects may be here.
LABEL = "hvdcloud-image"
_FIX_REQUIREMENTS = "correct image.requirements in hvdcloud.yaml or the file it names, then `hvdcloud build` again"
_FIX_DOWNLOADS = "check that PyPI can be reached, image.ca_bundle and image.find_links, then `hvdcloud build` again"


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
    plan = _plan(image_config, project_dir=project_dir)
    with contextlib.closing(engine.connect()) as client:
        # Not all of docker-py's methods have types.
        api: Any = client.api
        builder = _Builder(api=api, plan=plan, progress=progress)
        image_id = _image_id(api, plan.reference)
        cached = image_id is not None
        if image_id is None:
            # Not the engine's own ID: engines that share /etc/docker have the same.
            with alone(progress, engine=os.environ.get("DOCKER_HOST", "")):
                # Another process may have built it while this one waited.
                image_id = _image_id(api, plan.reference) or _pulled(api, cache_from, plan, progress=progress)
                cached = image_id is not None
                image_id = image_id or builder.build()
        return BuildResult(
            reference=plan.reference,
            image_id=image_id,
            digest=_digest(api, image_id, repository=image_config.repository),
            cached=cached,
            seconds=time.monotonic() - started,
            steps=builder.steps,
        )


def image_reference(image_config: ImageConfig, *, project_dir: Path) -> str:
    """The reference that `build` gives the image; no engine is asked.

    Raises:
        UsageError: no such framework and device, or a file that the configuration names is not there.
    """
    return _plan(image_config, project_dir=project_dir).reference


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What is to be in the engine in the end, and what it is made of.

    Attributes:
        digest: stands for the content.
        project: the layer on top of the base image; None: the base image is all that is wanted.
    """

    row: versions.Row
    sources: Sources
    reference: str
    digest: str
    builder: context.Context
    builder_reference: str
    base: context.Context
    base_reference: str
    project: context.Context | None
    requirements: str


def _plan(image_config: ImageConfig, *, project_dir: Path) -> _Plan:
    row = versions.find(image_config.framework, image_config.device)
    sources = find_sources(
        find_links=image_config.find_links, ca_bundle=image_config.ca_bundle, project_dir=project_dir
    )
    builder = context.builder_context(row, sources)
    builder_reference = f"hvdcloud/builder:{row.label}-{builder.digest()}"
    base = context.base_context(row, sources, builder=builder_reference)
    digest = base.digest()
    base_reference = f"hvdcloud/base:{row.label}-{digest}"
    requirements = image_config.requirements
    project = None
    if requirements is not None and context.has_requirements(project_dir, requirements):
        project = context.project_context(
            row, sources, project_dir=project_dir, requirements=requirements, base=base_reference
        )
        digest = project.digest()
    return _Plan(
        row=row,
        sources=sources,
        reference=f"hvdcloud/project:{digest}",
        digest=digest,
        builder=builder,
        builder_reference=builder_reference,
        base=base,
        base_reference=base_reference,
        project=project,
        requirements=requirements or "",
    )


@dataclass(slots=True, kw_only=True)
class _Builder:
    """Builds up to three images that stand on each other, each only if it is not there."""

    api: Any
    plan: _Plan
    progress: Progress
    steps: int = 0

    def build(self) -> str:
        """Returns the image's id."""
        plan = self.plan
        have_base = _image_id(self.api, plan.base_reference) is not None
        if plan.project or not have_base:
            self._builder()
        if not have_base:
            self._base()
        if plan.project is None:
            return _tagged(self.api, plan.base_reference, plan.reference)
        arguments = {"BUILDER": plan.builder_reference, "BASE": plan.base_reference, "REQUIREMENTS": plan.requirements}
        arguments |= self._index()
        # The throw-away stage first, to know which image has to be thrown away.
        stage = self._run(
            plan.project,
            what=f"the layer for {plan.requirements}",
            dockerfile=context.PROJECT_DOCKERFILE,
            target="requirements",
            arguments=arguments,
        )
        image_id = self._run(
            plan.project,
            what=plan.reference,
            tag=plan.reference,
            dockerfile=context.PROJECT_DOCKERFILE,
            arguments=arguments,
            labels={LABEL: plan.digest},
        )
        self._throw_away(stage)
        return image_id

    def _base(self) -> None:
        self._run(
            self.plan.base,
            what="the base image",
            tag=self.plan.base_reference,
            dockerfile=context.BASE_DOCKERFILE,
            arguments={"BUILDER": self.plan.builder_reference},
            labels={LABEL: self.plan.base.digest()},
        )

    def _builder(self) -> None:
        """The image with the compilers: with a name of its own it survives `docker image prune`."""
        if _image_id(self.api, self.plan.builder_reference) is None:
            self._run(
                self.plan.builder,
                what="the compilers, torch and Horovod",
                tag=self.plan.builder_reference,
                dockerfile=f"dockerfiles/{self.plan.row.dockerfile}",
                target="builder",
                arguments=self._row_arguments(),
            )

    def _row_arguments(self) -> dict[str, str]:
        return {
            "TORCH_VERSION": self.plan.row.framework_version,
            "TORCH_LOCK": self.plan.row.lock,
            "HOROVOD_VERSION": self.plan.row.horovod,
            "HOROVOD_SHA256": self.plan.row.horovod_sha256,
        } | self._index()

    def _index(self) -> dict[str, str]:
        local = context.has_framework(self.plan.row, self.plan.sources)
        return {} if local else {"TORCH_INDEX_URL": self.plan.row.framework_index}

    def _run(
        self,
        what_to_send: context.Context,
        *,
        what: str,
        dockerfile: str,
        arguments: Mapping[str, str],
        tag: str | None = None,
        target: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> str:
        """One build by the engine; returns the image's id."""
        from docker.errors import APIError

        last_step = 0

        def count(event: BuildEvent) -> None:
            nonlocal last_step
            last_step = event.step if event.kind == "step" else last_step
            self.progress(event)

        self.progress(BuildEvent(kind="image", text=what))
        try:
            items = self.api.build(
                fileobj=what_to_send.stream(),
                custom_context=True,
                dockerfile=dockerfile,
                tag=tag,
                target=target,
                buildargs={**download_arguments(os.environ), **arguments},
                labels=dict(labels or {}),
                use_config_proxy=True,
                rm=True,
                forcerm=True,
                timeout=SILENCE_SECONDS,
                decode=True,
            )
            with contextlib.closing(items):
                pip_hint = _FIX_REQUIREMENTS if dockerfile == context.PROJECT_DOCKERFILE else _FIX_DOWNLOADS
                return stream.follow_build(items, image=what, pip_hint=pip_hint, progress=count)
        except APIError as error:
            full = stream.disk_full(str(error.explanation or error), image=what)
            raise full or ImageError(
                f"the Docker engine refused to build {what}: {error.explanation or error}",
                hint="docker info shows whether the engine is well; then try again",
            ) from error
        finally:
            self.steps += last_step

    def _throw_away(self, image_id: str) -> None:
        from docker.errors import APIError

        # It only costs space: an engine that keeps it, for whatever reason, has built the image all the same.
        with contextlib.suppress(APIError):
            self.api.remove_image(image_id)


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


def _pulled(api: Any, source: str | None, plan: _Plan, *, progress: Progress) -> str | None:
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
