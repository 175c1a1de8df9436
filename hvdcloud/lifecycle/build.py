"""`hvdcloud build` and `hvdcloud push`."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hvdcloud import engine
from hvdcloud.doctor.machine import check_gpus
from hvdcloud.errors import UsageError
from hvdcloud.google.grants import settled_at
from hvdcloud.image.build.builder import Options, find_plan
from hvdcloud.image.build.builder import build as build_image
from hvdcloud.image.engine_reports import inspected
from hvdcloud.image.plan.custom_base import Needs
from hvdcloud.image.plan.steps import ARCHITECTURES
from hvdcloud.image.publish import registry
from hvdcloud.image.publish.registry import target_of
from hvdcloud.image.publish.transfer import push as push_image
from hvdcloud.private_files import left_out
from hvdcloud.project_files import build_files

if TYPE_CHECKING:
    from hvdcloud.config.model import Config
    from hvdcloud.console import Console
    from hvdcloud.image.engine_reports import BuildEvent, Progress
    from hvdcloud.lifecycle.context import Context
    from hvdcloud.steps import Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOutcome:
    """The image that nodes run."""

    reference: str
    image_id: str = ""
    """In this machine's engine; empty: it is not there."""
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
    started = time.monotonic()
    config = context.config
    repository = repository_of(config) if push else ""
    check_gpus(config, context.platform)
    warn_of_private_files(context)
    with context.console.steps() as steps:
        steps.update("image", "looking for it", if_slow=True)
        built = build_image(
            config.image,
            project_dir=config.project_dir,
            options=Options(
                progress=shown_on(context.console, steps),
                cache_from=cache_from,
                cache_to=cache_to,
                zstd=context.platform.unpacks_zstd,
            ),
            needs=needs_of(context),
            machine=context.platform.processor,
        )
        steps.finish("image", "ready")
    took = time.monotonic() - started
    return BuildOutcome(
        reference=built.reference,
        image_id=built.image_id,
        tag=target_of(built.reference, repository) if push else None,
        digest=_push(context, built.reference, repository) if push else None,
        cached=built.cached,
        seconds=took,
    )


def needs_of(context: Context) -> Needs:
    """What a run of this configuration needs of its image."""
    gpu, run = context.platform.gpu() if context.config.image.device == "cuda" else None, context.config.run
    capability = gpu.compute_capability if gpu else ""
    return Needs(launcher=run.launcher, controller=run.controller, capability=capability)


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


def shown_on(console: Console, steps: Steps) -> Progress:
    """What shows a build's progress: the image that is built, the newest of its instructions, and what it prints."""

    def progress(event: BuildEvent) -> None:
        if event.kind in ("image", "step"):
            steps.update("image", event.text)
        elif event.kind == "warning":
            console.warn(event.text)
        elif event.kind == "layer":
            steps.output("image", event.text)
        elif event.kind == "output":
            steps.output("image", event.text)
            console.detail(event.text)

    return progress


def find_image(context: Context) -> tuple[str, bool]:
    """What the nodes are to run, and whether it is there: on this machine's engine by its name, elsewhere by its digest
    at the registry; one that is not there, by the name that `push` would give it.

    Raises:
        UsageError: `image.repository` is not set.
        ImageError: its tag was moved since this machine pushed it.
        CredentialsError: the registry refuses us.
    """
    config = context.config
    with context.console.steps() as steps:
        steps.update("image", "looking for it", if_slow=True)
        plan = find_plan(
            config.image,
            project_dir=config.project_dir,
            needs=needs_of(context),
            machine=context.platform.processor,
            progress=shown_on(context.console, steps),
        )
    reference = plan.reference
    if not context.platform.needs_registry:
        with contextlib.closing(engine.connect()) as client:
            return reference, inspected(client.api, reference) is not None

    repository = repository_of(config)
    target = target_of(reference, repository)
    with context.console.waiting("image", "asking the registry"):
        # What another machine has pushed, such as a CI job, is as good: the tag is made of the content.
        digest = registry.published(reference, repository)
    return (registry.pinned(target, digest), True) if digest else (target, False)


def repository_of(config: Config) -> str:
    """Where images are pushed to, and nodes pull them from; raises UsageError if nothing says it, or it is none."""
    if config.image.repository is None:
        raise UsageError(
            "image.repository is not set: there is nowhere to push the image to, or for nodes to pull it from",
            hint="set it in hvdcloud.yaml, e.g. us-central1-docker.pkg.dev/PROJECT/hvdcloud/digits",
        )
    registry.check_repository(config.image.repository, of="image.repository", may_have_tag=True)
    return config.image.repository


def ensure_image(context: Context) -> str:
    """Build if needed, push where there is a registry; returns what the nodes are to run, as `find_image` does."""
    needed = context.platform.needs_registry
    built = build(context, push=needed or context.config.image.repository is not None)
    return registry.pinned(built.tag, built.digest) if needed and built.tag and built.digest else built.reference


def _push(context: Context, reference: str, repository: str) -> str:
    """Push it; returns its digest at the registry."""
    with context.console.steps() as steps:
        steps.update("push", "asking the registry", if_slow=True)
        layers: dict[str, tuple[int, int]] = {}
        arrived: set[str] = set()

        def progress(event: BuildEvent) -> None:
            if event.kind != "layer":
                steps.update("push", event.text)
                return
            layer, _, status = event.text.partition(": ")
            layers[layer] = (event.done, event.size) if event.size else layers.get(layer, (0, 0))
            if status in ("Pushed", "Layer already exists"):
                arrived.add(layer)
            if status in ("Preparing", "Waiting"):
                return
            done, total = (sum(column) for column in zip(*layers.values(), strict=True))
            what = f"{len(arrived)} of {len(layers)} layers"
            steps.update("push", what, done=done, total=total or None)

        digest = push_image(
            reference,
            repository,
            progress=progress,
            architecture=ARCHITECTURES.get(context.platform.processor or "", ""),
            settled_at=settled_at(context.config.gce.project),
        )
        steps.finish("push")
    return digest
