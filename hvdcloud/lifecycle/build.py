"""`hvdcloud build` and `hvdcloud push`."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hvdcloud.errors import ImageError, UsageError

if TYPE_CHECKING:
    from hvdcloud.config import Config
    from hvdcloud.image.stream import BuildEvent
    from hvdcloud.lifecycle.context import Context


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOutcome:
    """The image that nodes run."""

    reference: str
    image_id: str
    digest: str | None
    """At the registry; None if it was not pushed."""
    cached: bool
    """Nothing had to be built."""
    seconds: float


def build(context: Context, *, push: bool = False, cache_from: str | None = None) -> BuildOutcome:
    """Build what the configuration asks for; with the same content as before, do nothing.

    Raises:
        ImageError: a step failed, or the registry refused; details hold the last lines.
        UsageError: a file that the configuration names is missing, or there is nowhere to push to.
        NodeError: no Docker engine answers.
    """
    from hvdcloud.image.build import build as build_image

    started = time.monotonic()
    config = context.config
    repository = config.image.repository
    if push and repository is None:
        raise UsageError(
            "there is nowhere to push to: image.repository is not set", hint="set image.repository in hvdcloud.yaml"
        )
    with context.console.steps() as steps:

        def progress(event: BuildEvent) -> None:
            if event.kind == "step":
                steps.update("image", event.text, done=event.step, total=event.steps)
            else:
                context.console.detail(event.text)

        built = build_image(config.image, project_dir=config.project_dir, progress=progress, cache_from=cache_from)
        steps.update("image", "ready")
    outcome = BuildOutcome(
        reference=built.reference,
        image_id=built.image_id,
        digest=None,
        cached=built.cached,
        seconds=time.monotonic() - started,
    )
    return _push(context, outcome, repository) if push and repository is not None else outcome


def push(context: Context) -> BuildOutcome:
    """Push the image; it is built first if it is not there.

    Raises:
        UsageError: `image.repository` is not set.
        ImageError: the registry refused or cannot be reached.
    """
    return build(context, push=True)


def image_to_be(context: Context) -> str:
    """What `build` would call the image, and where `push` would put it; whether it is there is not asked.

    Raises:
        UsageError: `image.repository` is not set.
    """
    from hvdcloud.image.build import image_reference

    config = context.config
    reference = image_reference(config.image, project_dir=config.project_dir)
    if config.provider == "local":
        return reference
    from hvdcloud.image.registry import target_of

    return target_of(reference, _repository(config))


def image_of_nodes(context: Context) -> str:
    """What the nodes are to run: on this machine's engine by its name, elsewhere by its digest at the registry.

    Raises:
        UsageError: `image.repository` is not set.
        ImageError: the image is not at the registry, or its tag was moved since this machine pushed it.
        CredentialsError: the registry refuses us.
    """
    from hvdcloud.image.build import image_reference

    config = context.config
    reference = image_reference(config.image, project_dir=config.project_dir)
    if config.provider == "local":
        return reference
    from hvdcloud.image import registry

    repository = _repository(config)
    target = registry.target_of(reference, repository)
    # What another machine has pushed, such as a CI job, is as good: the tag is made of the content.
    digest = registry.published(reference, repository) or registry.digest_at_registry(target)
    if digest is None:
        raise ImageError(f"the image {target} is not at the registry", hint="hvdcloud push builds and pushes it")
    return registry.pinned(target, digest)


def _repository(config: Config) -> str:
    if config.image.repository is None:
        raise UsageError(
            f"image.repository is not set; provider {config.provider} pulls the image from there",
            hint="set image.repository in hvdcloud.yaml, e.g. us-central1-docker.pkg.dev/PROJECT/hvdcloud/digits",
        )
    return config.image.repository


def ensure_image(context: Context) -> BuildOutcome:
    """Build if needed; push where nodes pull from a registry."""
    if context.config.provider != "local":
        _repository(context.config)
    return build(context, push=context.config.image.repository is not None)


def _push(context: Context, built: BuildOutcome, repository: str) -> BuildOutcome:
    from hvdcloud.image.push import push as push_image

    with context.console.steps() as steps:
        layers: dict[str, tuple[float, float]] = {}
        arrived: set[str] = set()

        def progress(event: BuildEvent) -> None:
            layer, _, status = event.text.partition(": ")
            layers[layer] = (event.step or 0.0, event.steps or 0.0) if event.steps else layers.get(layer, (0.0, 0.0))
            if status in ("Pushed", "Layer already exists"):
                arrived.add(layer)
            if status in ("Preparing", "Waiting"):
                return
            done, total = (sum(column) for column in zip(*layers.values(), strict=True))
            steps.update("push", f"{len(arrived)} of {len(layers)} layers", done=done, total=total or None)

        digest = push_image(built.reference, repository, progress=progress)
        steps.update("push", "done")
    return replace(built, digest=digest)
