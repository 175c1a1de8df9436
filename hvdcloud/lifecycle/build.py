"""`hvdcloud build` and `hvdcloud push`."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hvdcloud import engine
from hvdcloud.doctor.gpus import check_gpus, needs_of
from hvdcloud.errors import ImageError, UsageError
from hvdcloud.google.grants import settled_at
from hvdcloud.image.build.builder import Options, find_plan
from hvdcloud.image.build.builder import build as build_image
from hvdcloud.image.engine_stream import inspected
from hvdcloud.image.plan.steps import ARCHITECTURES
from hvdcloud.image.publish import registry
from hvdcloud.image.publish.push import push as push_image
from hvdcloud.image.publish.registry import target_of
from hvdcloud.private_files import left_out
from hvdcloud.project_files import build_files
from hvdcloud.steps import NOTICEABLE_SECONDS

if TYPE_CHECKING:
    from hvdcloud.config.model import Config
    from hvdcloud.console import Console
    from hvdcloud.image.engine_stream import BuildEvent, Progress
    from hvdcloud.image.plan.steps import ImagePlan
    from hvdcloud.lifecycle.context import Context
    from hvdcloud.steps import Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOutcome:
    """The image that nodes run."""

    reference: str
    image_id: str
    tag: str | None = None
    """`HOST/PATH:TAG`, where it was pushed to; None if it was not pushed."""
    digest: str | None
    """At the registry; None if it was not pushed."""
    cached: bool
    """Nothing had to be built."""
    seconds: float


def build(
    context: Context,
    *,
    push: bool = False,
    cache_from: str | None = None,
    cache_to: str | None = None,
) -> BuildOutcome:
    """Build what the configuration asks for; with the same content as before, do nothing.

    Args:
        push: push it too.
        cache_from: repository from which images are pulled instead of built.
        cache_to: repository to which they are sent for that.

    Raises:
        ImageError: a step failed, the registry refused, or nodes have another processor than the image is for; details
            hold the last lines.
        UsageError: a file that the configuration names is missing, or there is nowhere to push to.
        NodeError: no Docker engine answers.
    """
    built = _build(context, push=push, cache_from=cache_from, cache_to=cache_to)
    return _push(context, built, push_repository(context.config)) if push else built


def warn_of_private_files(context: Context) -> None:
    """Warn of files with credentials that the build of `image.dockerfile` does not get."""
    if context.config.image.dockerfile is None:
        return
    private: set[str] = set()
    # What cannot be read is said by the build, with what to do.
    with contextlib.suppress(OSError):
        for _ in build_files(context.config.project_dir, withheld=private.add):
            pass
    if private:
        context.console.warn(left_out(private))


def _build(
    context: Context,
    *,
    push: bool,
    cache_from: str | None = None,
    cache_to: str | None = None,
) -> BuildOutcome:
    """The image in the engine; `push`: it will be pushed afterwards."""
    started = time.monotonic()
    config = context.config
    check_gpus(config)
    if push:
        push_repository(config)
    warn_of_private_files(context)
    with context.console.steps() as steps:
        steps.update("image", "looking for it", after=NOTICEABLE_SECONDS)
        built = build_image(
            config.image,
            project_dir=config.project_dir,
            options=Options(
                progress=shown_on(context.console, steps),
                cache_from=cache_from,
                cache_to=cache_to,
                zstd=context.platform.unpacks_zstd,
            ),
            needs=needs_of(config),
            machine=context.platform.processor,
            plan=context.image_plan,
        )
        context.image_plan = built.plan
        steps.finish("image", "ready")
    return BuildOutcome(
        reference=built.reference,
        image_id=built.image_id,
        digest=None,
        cached=built.cached,
        seconds=time.monotonic() - started,
    )


def shown_on(console: Console, steps: Steps) -> Progress:
    """What shows a build's progress: the image that is built, the instructions that run, and what they printed last."""
    running: set[int] = set()

    def leave(parts: set[int]) -> None:
        for part in parts & running:
            steps.drop("image", part=part)
        running.difference_update(parts)

    def progress(event: BuildEvent) -> None:
        if event.kind == "image":
            leave(set(running))
            steps.update("image", event.text)
        elif event.kind == "step":
            running.add(event.step)
            steps.update("image", event.text, part=event.step, after=NOTICEABLE_SECONDS)
        elif event.kind == "done":
            leave({event.step})
        elif event.kind == "warning":
            console.warn(event.text)
        elif event.kind == "layer":
            steps.output("image", event.text, part=event.step)
        elif event.kind == "output":
            steps.output("image", event.text, part=event.step)
            console.detail(event.text)

    return progress


def _plan(context: Context) -> ImagePlan:
    """What the configuration asks for, planned once for a command."""
    if context.image_plan is None:
        config = context.config
        with context.console.steps() as steps:
            steps.update("image", "looking for it", after=NOTICEABLE_SECONDS)
            context.image_plan = find_plan(
                config.image,
                project_dir=config.project_dir,
                needs=needs_of(config),
                machine=context.platform.processor,
                progress=shown_on(context.console, steps),
            )
    return context.image_plan


def image_to_be(context: Context) -> str:
    """What `build` would call the image, and where `push` would put it; whether it exists is not checked.

    Raises:
        UsageError: `image.repository` is not set.
    """
    reference = _plan(context).reference
    if not context.platform.needs_registry:
        return reference

    return target_of(reference, _repository(context.config))


def image_is_missing(context: Context) -> bool:
    """Whether nodes could not run it: the engine does not have it, or the registry that they pull it from.

    Raises as `image_of_nodes`, but not that the registry does not have it.
    """
    if context.platform.needs_registry:
        return _at_registry(context)[1] is None

    with contextlib.closing(engine.connect()) as client:
        return inspected(client.api, _plan(context).reference) is None


def image_of_nodes(context: Context) -> str:
    """What the nodes are to run: on this machine's engine by its name, elsewhere by its digest at the registry.

    Raises:
        UsageError: `image.repository` is not set.
        ImageError: the image is not at the registry, or its tag was moved since this machine pushed it.
        CredentialsError: the registry refuses us.
    """
    reference = _plan(context).reference
    if not context.platform.needs_registry:
        return reference

    with context.console.waiting("image", "asking the registry"):
        target, digest = _at_registry(context)
    if digest is None:
        raise ImageError(f"the image {target} is not at the registry", hint="hvdcloud push builds and pushes it")
    return registry.pinned(target, digest)


def _at_registry(context: Context) -> tuple[str, str | None]:
    """`HOST/PATH:TAG`, and the digest that it has there; None: the registry does not have it."""
    reference, repository = _plan(context).reference, _repository(context.config)
    target = registry.target_of(reference, repository)
    # What another machine has pushed, such as a CI job, is as good: the tag is made of the content.
    return target, registry.published(reference, repository) or registry.digest_at_registry(target)


def push_repository(config: Config) -> str:
    """Where images are pushed to; raises UsageError if nothing says it."""
    if config.image.repository is None:
        hint = "set image.repository in hvdcloud.yaml"
        raise UsageError("there is nowhere to push to: image.repository is not set", hint=hint)
    return config.image.repository


def _repository(config: Config) -> str:
    if config.image.repository is None:
        raise UsageError(
            f"image.repository is not set; provider {config.provider} pulls the image from there",
            hint="set image.repository in hvdcloud.yaml, e.g. us-central1-docker.pkg.dev/PROJECT/hvdcloud/digits",
        )
    return config.image.repository


def ensure_image(context: Context) -> BuildOutcome:
    """Build if needed; push where nodes pull from a registry."""
    if context.platform.needs_registry:
        _repository(context.config)
    repository = context.config.image.repository
    built = _build(context, push=repository is not None)
    return built if repository is None else _push(context, built, repository)


def _push(context: Context, built: BuildOutcome, repository: str) -> BuildOutcome:
    with context.console.steps() as steps:
        steps.update("push", "asking the registry", after=NOTICEABLE_SECONDS)
        layers: dict[str, tuple[float, float]] = {}
        arrived: set[str] = set()

        def progress(event: BuildEvent) -> None:
            if event.kind != "layer":
                steps.update("push", event.text)
                return
            layer, _, status = event.text.partition(": ")
            layers[layer] = (event.step or 0.0, event.steps or 0.0) if event.steps else layers.get(layer, (0.0, 0.0))
            if status in ("Pushed", "Layer already exists"):
                arrived.add(layer)
            if status in ("Preparing", "Waiting"):
                return
            done, total = (sum(column) for column in zip(*layers.values(), strict=True))
            what = f"{len(arrived)} of {len(layers)} layers"
            steps.update("push", what, done=done, total=total or None, in_bytes=True)

        digest = push_image(
            built.reference,
            repository,
            progress=progress,
            architecture=ARCHITECTURES.get(context.platform.processor or "", ""),
            settled_at=settled_at(context.config.gce.project),
        )
        steps.finish("push")
    return replace(built, digest=digest, tag=target_of(built.reference, repository))
