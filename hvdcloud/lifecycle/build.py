"""`hvdcloud build` and `hvdcloud push`."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hvdcloud.errors import CredentialsError, ImageError, UsageError
from hvdcloud.steps import NOTICEABLE_SECONDS
from hvdcloud.units import size

if TYPE_CHECKING:
    from collections.abc import Callable

    from hvdcloud.config.model import Config
    from hvdcloud.console import Console
    from hvdcloud.image.engine_stream import BuildEvent, Progress
    from hvdcloud.image.plan.steps import ImagePlan
    from hvdcloud.image.publish.sbom import Contents
    from hvdcloud.image.publish.scan import Vulnerabilities
    from hvdcloud.image.publish.scanned import Scanned
    from hvdcloud.lifecycle.context import Context
    from hvdcloud.steps import Steps

_SBOM_TITLE = "sbom.cdx.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SbomOutcome:
    """The SBOM of an image."""

    path: Path | None
    """The file; None if none was asked for."""
    digest: str | None
    """The digest of the artifact beside the image at the registry; None if there is none."""
    packages: int
    scanner: str | None = None
    """What listed them; None: no scanner did, and they are the Python packages."""

    @property
    def kind(self) -> str:
        """What is listed, for people."""
        return "packages" if self.scanner else "Python packages"


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
    sbom: SbomOutcome | None = None
    """None if it was neither asked for nor pushed."""
    vulnerabilities: Vulnerabilities | None = None
    """Known ones of the packages in the SBOM; None without a file for the SBOM, or a scanner on this machine."""


def build(
    context: Context,
    *,
    push: bool = False,
    cache_from: str | None = None,
    cache_to: str | None = None,
    sbom: Path | None = None,
) -> BuildOutcome:
    """Build what the configuration asks for; with the same content as before, do nothing.

    Args:
        push: push it too, and its SBOM beside it.
        cache_from: repository from which images are pulled instead of built.
        cache_to: repository to which they are sent for that.
        sbom: write the SBOM to this file, and what a scanner says about it beside it.

    Raises:
        ImageError: a step failed, the registry refused, or nodes have another processor than the image is for; details
            hold the last lines.
        UsageError: a file that the configuration names is missing, `sbom` can't be written, or there is nowhere to push
            to.
        NodeError: no Docker engine answers.
    """
    if sbom is not None:
        _check_writable(sbom)
    built = _build(context, push=push, cache_from=cache_from, cache_to=cache_to)
    if not push and sbom is None:
        return built
    found = _contents(context, built.reference, wanted=sbom is not None)
    if push:
        built = _push(context, built, _repository(context.config))
    return built if found is None else _with_sbom(context, built, found, path=sbom)


def warn_of_private_files(context: Context) -> None:
    """Warn of files with credentials that the build of `image.dockerfile` does not get."""
    from hvdcloud.private_files import left_out
    from hvdcloud.project_files import build_files

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
    before: Callable[[], object] = lambda: None,
) -> BuildOutcome:
    """The image in the engine; `push`: it will be pushed afterwards, `before`: as for `ensure_image`."""
    from hvdcloud.doctor.gpus import check_gpus, needs_of
    from hvdcloud.image.build.builder import build as build_image

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
            progress=shown_on(context.console, steps),
            cache_from=cache_from,
            cache_to=cache_to,
            needs=needs_of(config),
            machine=context.platform.processor,
            plan=context.image_plan,
            before=before,
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
    """What shows a build's progress: the image that is built, the stages of that, and what these printed last."""
    running: set[int] = set()

    def leave(parts: set[int]) -> None:
        for part in parts & running:
            steps.leave("image", part=part)
        running.difference_update(parts)

    def progress(event: BuildEvent) -> None:
        if event.kind == "image":
            leave(set(running))
            steps.update("image", event.text)
        elif event.kind == "step" and event.stage:
            running.add(event.step)
            steps.update("image", event.stage, part=event.step, after=NOTICEABLE_SECONDS)
        elif event.kind == "done":
            leave({event.step})
        elif event.kind == "warning":
            console.warn(event.text)
        elif event.kind == "layer":
            how_far = f" {size(event.step)} of {size(event.steps)}" if event.steps else ""
            steps.output("image", event.text + how_far, part=max(running, default=0))
            console.detail(event.text)
        elif event.kind == "output":
            steps.output("image", event.text, part=event.step)
            console.detail(event.text)

    return progress


def push(context: Context) -> BuildOutcome:
    """Push the image and its SBOM; it is built first if it does not exist.

    Raises:
        UsageError: `image.repository` is not set.
        ImageError: the registry refused or cannot be reached.
    """
    return build(context, push=True)


def _plan(context: Context) -> ImagePlan:
    """What the configuration asks for, planned once for a command."""
    from hvdcloud.doctor.gpus import needs_of
    from hvdcloud.image.build.builder import find_plan

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
    from hvdcloud.image.publish.registry import target_of

    return target_of(reference, _repository(context.config))


def image_is_missing(context: Context) -> bool:
    """Whether nodes could not run it: the engine does not have it, or the registry that they pull it from.

    Raises as `image_of_nodes`, but not that the registry does not have it.
    """
    if context.platform.needs_registry:
        return _at_registry(context)[1] is None
    from hvdcloud import engine
    from hvdcloud.image.engine_stream import inspected

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
    from hvdcloud.image.publish import registry

    with context.console.waiting("image", "asking the registry"):
        target, digest = _at_registry(context)
    if digest is None:
        raise ImageError(f"the image {target} is not at the registry", hint="hvdcloud push builds and pushes it")
    return registry.pinned(target, digest)


def _at_registry(context: Context) -> tuple[str, str | None]:
    """`HOST/PATH:TAG`, and the digest that it has there; None: the registry does not have it."""
    from hvdcloud.image.publish import registry

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


def ensure_image(context: Context, *, before: Callable[[], object] = lambda: None) -> BuildOutcome:
    """Build if needed; push where nodes pull from a registry. An experiment's image gets no SBOM.

    Args:
        before: called before anything is pulled, built or pushed, maybe more than once; what it raises prevents that.
    """
    if context.platform.needs_registry:
        _repository(context.config)
    repository = context.config.image.repository
    if repository is not None:
        before()
    built = _build(context, push=repository is not None, before=before)
    return built if repository is None else _push(context, built, repository)


def _push(context: Context, built: BuildOutcome, repository: str) -> BuildOutcome:
    from hvdcloud.google.grants import settled_at
    from hvdcloud.image.plan.steps import ARCHITECTURES
    from hvdcloud.image.publish.push import push as push_image
    from hvdcloud.image.publish.registry import target_of

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


def _check_writable(path: Path) -> None:
    """Before a build that may take long."""
    folder = path.parent
    if path.is_dir():
        why = "that is a folder"
    elif not folder.is_dir():
        why = f"there is no folder {folder}"
    elif not os.access(path if path.exists() else folder, os.W_OK):
        why = "permission denied"
    else:
        return
    hint = f"--sbom {_SBOM_TITLE} writes it into the current folder"
    raise UsageError(f"the SBOM can't be written to {path}: {why}", hint=hint)


def _contents(context: Context, reference: str, *, wanted: bool) -> Contents | Scanned | None:
    """What is in the image: all of it where a scanner is on this machine, else its Python packages; None if that cannot
    be found out and was not asked for."""
    from hvdcloud.image.publish import sbom, scan, scanned

    unseen = "sshd, libc, Open MPI and what else is in its system are not looked at"
    if (scanner := scan.available()) is None:
        context.console.say(f"{unseen}: there is no scanner here; {scan.HOW_TO_GET_ONE}")
    else:
        try:
            with context.console.steps() as steps:
                steps.update("sbom", f"{scanner} looks at the image")
                found = scanned.contents(reference)
                steps.finish("sbom", "ready")
            return found
        except ImageError as error:
            context.console.warn(f"{unseen}: {error.message}; {error.hint} shows why")
    try:
        return sbom.contents(reference)
    except ImageError as error:
        if wanted:
            raise
        context.console.warn(f"there will be no SBOM: {error.message}")
        return None


def _with_sbom(context: Context, built: BuildOutcome, found: Contents | Scanned, *, path: Path | None) -> BuildOutcome:
    """Write the SBOM to a file if one is wanted, and to the registry if the image was pushed."""
    from docker.utils import parse_repository_tag

    from hvdcloud.image.publish import sbom, scanned

    name = parse_repository_tag(built.tag or built.reference)[0]
    if isinstance(found, scanned.Scanned):
        scanner, content = found.inventory.scanner, scanned.document(found, name=name, digest=built.digest)
    else:
        scanner, content = None, sbom.document(found, name=name, digest=built.digest)
    if path is not None:
        try:
            path.write_bytes(content)
        except OSError as error:
            message = f"the SBOM was not written to {path}: {error.strerror}"
            raise ImageError(message, hint="free space there, then build again") from error
    attached = _attach(context, built, content)
    outcome = SbomOutcome(path=path, digest=attached, packages=len(found.packages), scanner=scanner)
    vulnerabilities = None if path is None else _scan(context, outcome, path)
    return replace(built, sbom=outcome, vulnerabilities=vulnerabilities)


def _attach(context: Context, built: BuildOutcome, content: bytes) -> str | None:
    """Puts the SBOM beside the image; a registry that takes none does not undo the push."""
    if built.tag is None or built.digest is None:
        return None
    from hvdcloud.image.publish import referrers, sbom

    try:
        return referrers.attach(built.tag, built.digest, content, media_type=sbom.MEDIA_TYPE, title=_SBOM_TITLE)
    except (ImageError, CredentialsError) as error:
        context.console.warn(f"the image is pushed, but its SBOM is not beside it: {error.message}; {error.hint}")
        return None


def _scan(context: Context, sbom: SbomOutcome, path: Path) -> Vulnerabilities | None:
    """What a scanner on this machine knows of the packages. It says; it fails nothing."""
    from hvdcloud.image.publish import scan

    try:
        found = scan.scan(path, report=path.with_suffix(".vulnerabilities.json"))
    except (ImageError, OSError) as error:
        said = f"{error.message}; {error.hint} shows why" if isinstance(error, ImageError) else str(error)
        context.console.warn(f"there is no report on vulnerabilities: {said}")
        return None
    if found is not None:
        known = f"known vulnerabilities of its {sbom.kind} ({found.scanner})"
        context.console.say(f"{known}: {found.summary}; {found.report}")
    return found
