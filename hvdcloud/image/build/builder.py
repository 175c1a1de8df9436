"""`build`: from hvdcloud.yaml's image section to an image in the Docker engine."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdcloud import engine
from hvdcloud.errors import ImageError, NodeError
from hvdcloud.image.engine_stream import BuildEvent, Progress, ignore, inspected, other_architecture
from hvdcloud.image.plan import base_images, custom_base
from hvdcloud.image.plan.steps import ImagePlan, Step, plan_image

if TYPE_CHECKING:
    from hvdcloud.config.model import ImageConfig
    from hvdcloud.image.build import registry_cache
    from hvdcloud.image.build.buildkit import BuildKitBuilder
    from hvdcloud.image.build.classic import ClassicBuilder

EMULATED_TIMES = (5, 10)
"""How many times as long compilers take under QEMU: https://github.com/7xuanlu/origin/pull/185 (C++ and Rust)."""
_LOCK_SECONDS = 3600.0
"""How long a build may wait for another one."""
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """An image that is in the engine.

    Attributes:
        digest: the registry's (`sha256:…`), if this very image was pushed to or pulled from `image.repository`.
        cached: nothing was built, because the image existed.
        steps: Dockerfile steps that the engine went through, those that it had in its cache included.
    """

    plan: ImagePlan
    image_id: str
    digest: str | None
    cached: bool
    seconds: float
    steps: int

    @property
    def reference(self) -> str:
        """What to run: `hvdcloud/project:HASH`. HASH stands for the content: projects with the same share it."""
        return self.plan.reference


def build(
    image_config: ImageConfig,
    *,
    project_dir: Path,
    progress: Progress,
    cache_from: str | None = None,
    cache_to: str | None = None,
    needs: custom_base.Needs | None = None,
    machine: str | None = None,
    plan: ImagePlan | None = None,
    zstd: bool = False,
) -> BuildResult:
    """Builds the image, unless the engine has it.

    Args:
        image_config: the `image` section of hvdcloud.yaml; its paths are relative to `project_dir`.
        progress: called for every step and every line of output.
        cache_from: `HOST/PATH[:TAG]`, a repository: what it has of the images needed is pulled instead of built.
        cache_to: `HOST/PATH`: what it lacks of the images that the engine has is sent there, for `cache_from`.
        needs: what `image.base` has to be able to do.
        machine: the nodes' processor, as in wheel names; None: this machine's.
        plan: what `find_plan` returned for all this; None: it is made here.
        zstd: layers that are built may be packed with zstd: what is to run the image unpacks them.

    Raises:
        UsageError: no such framework and device, a file that the configuration names is missing, or a cache is no
            repository.
        NodeError, CredentialsError: the engine, see `engine.connect`.
        ImageError: `image.base` can't be pulled or can't be a node, or a step failed; `details` has its last lines.
    """
    started = time.monotonic()
    source, target = _caches(cache_from, cache_to)
    # What can be refused is refused before an engine is asked, and before `image.base` is pulled.
    if plan is None:
        unseen = custom_base.Base(reference=image_config.base, identity="") if image_config.base else None
        plan = plan_image(image_config, project_dir=project_dir, machine=machine, base=unseen, needs=needs)
    with contextlib.closing(engine.connect()) as client:
        # Not all of docker-py's methods have types.
        api: Any = client.api
        base, own = None, None
        if image_config.base is not None:
            base = custom_base.have(api, image_config.base, progress=progress, architecture=plan.architecture)
            plan = plan_image(image_config, project_dir=project_dir, machine=machine, base=base, needs=needs)
        if plan.own_dockerfile is not None:
            # What it copies only the engine knows: the same image again is nothing new, whatever was sent.
            theirs = plan.until(plan.own_dockerfile)
            own = carry_out(api, theirs, progress=progress, source=source, zstd=zstd)
            plan = plan_image(
                image_config,
                project_dir=project_dir,
                machine=machine,
                base=base,
                needs=needs,
                own_image=own.image_id,
            )
        built = carry_out(
            api,
            plan,
            progress=progress,
            source=source,
            target=target,
            repository=image_config.repository,
            labels=partial(_labels, project_dir),
            zstd=zstd,
        )
    if base is not None and base.may_move and not built.cached:
        progress(BuildEvent(kind="warning", text=base.may_move))
    if own is not None:
        built = replace(built, cached=built.cached and own.cached, steps=built.steps + own.steps)
    return replace(built, seconds=time.monotonic() - started)


def _caches(
    cache_from: str | None, cache_to: str | None
) -> tuple[registry_cache.Cache | None, registry_cache.Cache | None]:
    if cache_from is None and cache_to is None:
        return None, None
    from hvdcloud.image.build import registry_cache

    return registry_cache.cache_from(cache_from), registry_cache.cache_to(cache_to)


def _labels(project_dir: Path) -> Mapping[str, str]:
    from hvdcloud.image.plan.provenance import source_labels

    return source_labels(project_dir, os.environ)


def carry_out(
    api: Any,
    plan: ImagePlan,
    *,
    progress: Progress,
    source: registry_cache.Cache | None = None,
    target: registry_cache.Cache | None = None,
    repository: str | None = None,
    labels: Callable[[], Mapping[str, str]] = dict,
    zstd: bool = False,
) -> BuildResult:
    """Builds what a plan says, as far as neither the engine nor a cache has it.

    Args:
        source, target: where images are taken from instead of built, and where they are sent.
        repository: where the result's digest is looked for.
        labels: more labels for a project's own image; asked for when it is built. No part of its content.
        zstd: as for `build`.

    Raises:
        ImageError, UsageError: as `build`.
    """
    started = time.monotonic()
    work = _Work(api=api, plan=plan, progress=progress, labels=labels, zstd=zstd)
    image_id = _image_id(api, plan.reference, plan.architecture)
    if image_id is None:
        with _locked(progress):
            # Another process may have built it while this one waited.
            image_id = _image_id(api, plan.reference, plan.architecture) or work.do(source)
    if target is not None:
        from hvdcloud.image.build import registry_cache

        registry_cache.store(api, target, plan=plan, progress=progress)
    return BuildResult(
        plan=plan,
        image_id=image_id,
        digest=_digest(api, image_id, repository=repository),
        cached=not work.built,
        seconds=time.monotonic() - started,
        steps=work.steps,
    )


def find_plan(
    image_config: ImageConfig,
    *,
    project_dir: Path,
    needs: custom_base.Needs | None = None,
    machine: str | None = None,
    progress: Progress = ignore,
) -> ImagePlan:
    """What `build` carries out; an engine is asked only for what image the tag `image.base` is.

    And, if it has built an `image.dockerfile` before, for what it makes of this one: seconds, for what is in its cache.
    Where none was built, as with Cloud Build, the files that are sent for it stand for that.

    Raises:
        UsageError: no such framework and device, or a file that the configuration names is missing.
        ImageError: `image.base` is not in the engine.
        NodeError, CredentialsError: the engine, see `engine.connect`.
    """
    base = None
    if image_config.base and not custom_base.is_pinned(image_config.base):
        with contextlib.closing(engine.connect()) as client:
            base = custom_base.find(client.api, image_config.base)
        if base is None:
            message = f"image.base: {image_config.base} is not in the engine"
            raise ImageError(message, hint="hvdcloud build pulls it and builds on it")
    planned = partial(plan_image, image_config, project_dir=project_dir, machine=machine, base=base, needs=needs)
    plan = planned()
    own = plan.own_dockerfile
    made = _made_here(plan.until(own), progress=progress) if own else ""
    return planned(own_image=made) if made else plan


def _made_here(plan: ImagePlan, *, progress: Progress) -> str:
    """The id of what the engine makes of `image.dockerfile`; "" if it has never built one, or none answers."""
    try:
        client = engine.connect()
    except NodeError:
        return ""
    with contextlib.closing(client):
        api: Any = client.api
        known = api.images(name=plan.reference.rpartition(":")[0])
        return carry_out(api, plan, progress=progress).image_id if known else ""


@contextlib.contextmanager
def _locked(progress: Progress) -> Iterator[None]:
    """Keeps this user's other processes from building on the same engine; they then find the image built.

    A killed process leaves no lock behind. Raises ImageError: another build took longer than `_LOCK_SECONDS`.
    """
    from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

    def tell(state: RetryCallState) -> None:
        if state.attempt_number == 1:
            process = f", process {holder}," if (holder := file.read(20)).isdigit() else ""
            text = f"waiting for another hvdcloud{process} that is building an image"
            progress(BuildEvent(kind="image", text=text))

    # Not the engine's own ID: engines that share /etc/docker have the same.
    key = hashlib.sha256(os.environ.get("DOCKER_HOST", "").encode()).hexdigest()[:8]
    path = Path(tempfile.gettempdir()) / f"hvdcloud-build-{os.getuid()}-{key}.lock"
    waiting = Retrying(
        retry=retry_if_exception_type(BlockingIOError),
        stop=stop_after_delay(_LOCK_SECONDS),
        wait=wait_fixed(_POLL_SECONDS),
        before_sleep=tell,
        reraise=True,
    )
    # All users share the folder: no other user's file is followed or truncated.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "r+") as file:
        try:
            waiting(fcntl.flock, file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            said = f"another hvdcloud has been building an image for {_LOCK_SECONDS:.0f} s"
            raise ImageError(said, hint=f"`fuser {path}` shows its process") from None
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        yield


@dataclass(slots=True, kw_only=True)
class _Work:
    """Builds the steps of a plan, each only if its image is neither here nor in the cache."""

    api: Any
    plan: ImagePlan
    progress: Progress
    labels: Callable[[], Mapping[str, str]]
    zstd: bool
    built: int = 0
    steps: int = 0
    _cache: registry_cache.Reader | None = None
    _builder: ClassicBuilder | BuildKitBuilder | None = None
    _emulated: bool = False

    def do(self, source: registry_cache.Cache | None) -> str:
        """Returns the id of the image wanted."""
        with contextlib.ExitStack() as stack:
            if source is not None:
                from hvdcloud.image.build import registry_cache

                self._cache = registry_cache.Reader(api=self.api, cache=source, plan=self.plan, progress=self.progress)
                stack.callback(self._cache.tidy)
            self._have(self.plan.last)
        repository, _, tag = self.plan.reference.rpartition(":")
        self.api.tag(self.plan.last.reference, repository, tag)
        return str(self.api.inspect_image(self.plan.reference)["Id"])

    def _have(self, step: Step) -> None:
        if _image_id(self.api, step.reference, self.plan.architecture) or (
            self._cache is not None and self._cache.take(step)
        ):
            return
        for earlier in self.plan.steps:
            if earlier.reference in step.needs:
                self._have(earlier)
        # Most commands find the image built, and load nothing that builds.
        from hvdcloud.image.build.buildkit import find_builder
        from hvdcloud.image.build.classic import ClassicBuilder
        from hvdcloud.image.stages import with_stages

        last = 0
        tell = with_stages(step, self.progress)

        def count(event: BuildEvent) -> None:
            nonlocal last
            last = event.step if event.kind == "step" else last
            tell(event)

        if step is self.plan.last:
            step = self.plan.labelled(self.labels()).last
        self.progress(BuildEvent(kind="image", text=step.what))
        wanted = self.plan.architecture
        step = self._as_here(step)
        # Looked for when there is something to build, and once.
        if self._builder is None:
            found = find_builder(self.api, architecture=wanted, zstd=self.zstd)
            self._builder = found or ClassicBuilder(self.api, wanted)
            self._emulated = is_emulated(self.api, wanted)
            if self._emulated:
                self.progress(BuildEvent(kind="warning", text=emulation_notice(wanted)))
        try:
            self._builder.build(step, progress=count)
        except ImageError as error:
            if self._emulated and "exec format error" in f"{error.message} {error.details}":
                message = f"{step.what} was not built: this Docker engine cannot run {wanted} programs"
                raise ImageError(message, hint="hvdcloud build --remote", details=error.details) from error
            raise
        finally:
            self.steps += last
        if other := other_architecture(self.api, step.reference, wanted):
            message = f"{step.what} makes an image for {other}, and the nodes are {wanted}"
            raise ImageError(message, hint=f"take --platform out of {step.dockerfile}")
        self.built += 1
        if step.start_of:
            self._say_what_does_not_start(step)

    def _as_here(self, step: Step) -> Step:
        """The step with base images that were made on this machine in place of a digest, and a label that says so."""
        arguments = base_images.arguments_here(self.api, step.arguments, architecture=self.plan.architecture)
        labels = dict(step.labels)
        for key in (key for key, value in arguments.items() if value != step.arguments[key]):
            text = f"{arguments[key]} was made on this machine and is taken in place of {step.arguments[key]}"
            self.progress(BuildEvent(kind="output", text=text))
            if key == "BASE_IMAGE" and base_images.DIGEST_LABEL in labels:
                labels |= base_images.labels(arguments[key])
        return replace(step, arguments=arguments, labels=labels)

    def _say_what_does_not_start(self, step: Step) -> None:
        found, ours = (inspected(self.api, each) for each in (step.reference, step.start_of))
        for key in ("Entrypoint", "Cmd"):
            value = (found or {}).get("Config", {}).get(key)
            if value and value != (ours or {}).get("Config", {}).get(key):
                text = f"{step.what}: its {key.upper()} {' '.join(value)} does not count: a node starts hvdcloud's own"
                self.progress(BuildEvent(kind="warning", text=f"{text}; run.command is what ranks run"))


def _image_id(api: Any, reference: str, architecture: str) -> str | None:
    """None: the engine lacks it, or has it for other nodes: a user's Dockerfile is called the same for all of them."""
    found = inspected(api, reference)
    if found is None or other_architecture(api, reference, architecture):
        return None
    return str(found["Id"])


def is_emulated(api: Any, architecture: str) -> bool:
    """Whether the engine has to emulate another processor for images of this architecture."""
    return bool(architecture) and api.version().get("Arch", architecture) != architecture


def emulation_notice(architecture: str) -> str:
    """What a build by emulation means, and what to do instead."""
    least, most = EMULATED_TIMES
    return (
        f"the nodes are {architecture} and this machine is not: emulation takes {least} to {most} times as long; "
        "hvdcloud build --remote builds at Google"
    )


def _digest(api: Any, image_id: str, *, repository: str | None) -> str | None:
    known = api.inspect_image(image_id).get("RepoDigests") or [] if repository else []
    parts = (entry.partition("@") for entry in known)
    return next((str(digest) for name, _, digest in parts if name == repository), None)
