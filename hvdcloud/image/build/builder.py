"""`build`: from hvdcloud.yaml's image section to an image in the Docker engine."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdcloud import engine
from hvdcloud.errors import HvdcloudError, ImageError, NodeError
from hvdcloud.image.build import buildkit, published, registry_cache
from hvdcloud.image.engine_reports import BuildEvent, Progress, ignore, inspected, other_architecture
from hvdcloud.image.plan import base_images, custom_base
from hvdcloud.image.plan.context import Step
from hvdcloud.image.plan.steps import ImagePlan, plan_image
from hvdcloud.image.publish import registry

if TYPE_CHECKING:
    from hvdcloud.config.model import ImageConfig

# How long compilers take under QEMU: https://github.com/7xuanlu/origin/pull/185 (C++ and Rust).
_EMULATED = (
    "the nodes are {} and this machine is not: emulation takes 5 to 10 times as long; "
    "hvdcloud build --remote builds at Google"
)
_NOT_PULLED = "{} is built here although it is published (Horovod, where it is compiled: about 4 minutes): {}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a plan is carried out.

    Attributes:
        progress: called for every instruction and every line of output.
        cache_from, cache_to: repositories (`HOST/PATH`) that images are taken from instead of built, and sent to.
        zstd: layers that are built may be packed with zstd: what is to run the image unpacks them.
    """

    progress: Progress = ignore
    cache_from: str | None = None
    cache_to: str | None = None
    zstd: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """An image that is in the engine; `cached`: nothing was built, because it existed."""

    plan: ImagePlan
    image_id: str
    cached: bool

    @property
    def reference(self) -> str:
        """What to run: `hvdcloud/project:HASH`. HASH stands for the content: projects with the same share it."""
        return self.plan.reference


def build(
    image_config: ImageConfig,
    *,
    project_dir: Path,
    options: Options = Options(),
    needs: custom_base.Needs | None = None,
    machine: str | None = None,
) -> BuildResult:
    """Builds the image, unless the engine has it.

    Args:
        image_config: the `image` section of hvdcloud.yaml; its paths are relative to `project_dir`.
        needs: what the run needs of the image.
        machine: the nodes' processor, as in wheel names; None: this machine's.

    Raises:
        UsageError: no such framework and device, a file that the configuration names is missing, or a cache is no
            repository.
        NodeError, CredentialsError: the engine, see `engine.connect`.
        ImageError: `image.base` can't be pulled or can't be a node, there is no BuildKit, or an instruction failed;
            `details` has its last lines.
    """
    for option, repository in (("--cache-from", options.cache_from), ("--cache-to", options.cache_to)):
        if repository is not None:
            registry.check_repository(repository, of=option)
    planned = partial(plan_image, image_config, project_dir=project_dir, machine=machine, needs=needs)
    # What can be refused is refused before an engine is asked, and before `image.base` is pulled.
    plan = planned(base=custom_base.Base(reference=image_config.base, identity="") if image_config.base else None)
    with contextlib.closing(engine.connect()) as client:
        # Not all of docker-py's methods have types.
        api: Any = client.api
        base, own = None, None
        if image_config.base is not None:
            base = custom_base.have(api, image_config.base, progress=options.progress, architecture=plan.architecture)
            plan = planned(base=base)
        if plan.own_dockerfile is not None:
            # What it copies only the engine knows: the same image again is nothing new, whatever was sent.
            own = carry_out(api, plan.until(plan.own_dockerfile), replace(options, cache_to=None))
            plan = planned(base=base, own_image=own.image_id)
        built = carry_out(api, plan, options)
    if base is not None and base.may_move and not built.cached:
        options.progress(BuildEvent(kind="warning", text=base.may_move))
    return replace(built, cached=built.cached and (own is None or own.cached))


def carry_out(api: Any, plan: ImagePlan, options: Options = Options()) -> BuildResult:
    """Builds what a plan says that is neither here nor in a cache nor published. Raises ImageError: as `build`."""
    work = _Work(api, plan, options)
    image_id = _image_id(api, plan.reference, plan.architecture)
    if image_id is None:
        with _locked(options.progress):
            # Another process may have built it while this one waited.
            image_id = _image_id(api, plan.reference, plan.architecture) or work.do()
    if options.cache_to is not None:
        registry_cache.store(api, options.cache_to, plan=plan, progress=options.progress)
    return BuildResult(plan=plan, image_id=image_id, cached=not work.built)


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
        return carry_out(api, plan, Options(progress=progress)).image_id if known else ""


@contextlib.contextmanager
def _locked(progress: Progress) -> Iterator[None]:
    """Keeps this user's other processes from building on the same engine; they then find the image built.

    A killed process leaves no lock behind.
    """
    # Not the engine's own ID: engines that share /etc/docker have the same.
    key = hashlib.sha256(os.environ.get("DOCKER_HOST", "").encode()).hexdigest()[:8]
    path = Path(tempfile.gettempdir()) / f"hvdcloud-build-{os.getuid()}-{key}.lock"
    # All users share the folder: no other user's file is followed.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(BuildEvent(kind="image", text="waiting for another hvdcloud that is building an image"))
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@dataclass(slots=True)
class _Work:
    """Builds the steps of a plan, each only if its image is neither here nor in the cache nor published."""

    api: Any
    plan: ImagePlan
    options: Options
    built: int = 0
    _buildkit: buildkit.BuildKit | None = None

    def do(self) -> str:
        """Returns the id of the image wanted."""
        self._have(self.plan.last)
        repository, _, tag = self.plan.reference.rpartition(":")
        self.api.tag(self.plan.last.reference, repository, tag)
        return str(self.api.inspect_image(self.plan.reference)["Id"])

    def _have(self, step: Step) -> None:
        options, wanted = self.options, self.plan.architecture
        if _image_id(self.api, step.reference, wanted):
            return
        source = options.cache_from
        if source is not None and registry_cache.fetch(self.api, source, step=step, progress=options.progress):
            return
        if self._pulled(step):
            return
        for earlier in self.plan.steps:
            if earlier.reference in step.needs:
                self._have(earlier)
        if self._buildkit is None:
            self._buildkit = buildkit.find(self.api)
            if wanted and self.api.version().get("Arch", wanted) != wanted:
                self._tell("warning", _EMULATED.format(wanted))
        self._tell("image", step.what)
        zstd = options.zstd and self._buildkit.packs_zstd(self.api)
        self._buildkit.build(self._as_here(step), architecture=wanted, zstd=zstd, progress=options.progress)
        if other := other_architecture(self.api, step.reference, wanted):
            message = f"{step.what} makes an image for {other}, and the nodes are {wanted}"
            raise ImageError(message, hint=f"take --platform out of {step.dockerfile}")
        self.built += 1

    def _pulled(self, step: Step) -> bool:
        """Whether the step's image is published and is here now."""
        name = published.find(step.reference)
        if not name:
            return False
        self._tell("image", f"pulling {step.what}, published")
        try:
            published.fetch(self.api, name, step.reference, progress=self.options.progress)
        except HvdcloudError as error:
            self._tell("warning", _NOT_PULLED.format(step.what, error.message))
            return False
        return True

    def _as_here(self, step: Step) -> Step:
        """The step with base images that were made on this machine in place of a digest, and a label that says so."""
        arguments, labels = dict(step.arguments), dict(step.labels)
        for key in arguments.keys() & {"BASE_IMAGE", "CUDA_DONOR"}:
            pinned = arguments[key]
            found = base_images.here(self.api, pinned, architecture=self.plan.architecture)
            if found != pinned:
                self._tell("output", f"{found} was made on this machine and is taken in place of {pinned}")
                if key == "BASE_IMAGE" and base_images.DIGEST_LABEL in labels:
                    labels |= base_images.labels(found)
            arguments[key] = found
        return replace(step, arguments=arguments, labels=labels)

    def _tell(self, kind: Any, text: str) -> None:
        self.options.progress(BuildEvent(kind=kind, text=text))


def _image_id(api: Any, reference: str, architecture: str) -> str | None:
    """None: the engine lacks it, or has it for other nodes: a user's Dockerfile is called the same for all of them."""
    found = inspected(api, reference)
    if found is None or other_architecture(api, reference, architecture):
        return None
    return str(found["Id"])
