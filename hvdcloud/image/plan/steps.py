"""What has to be built for an image: a few Dockerfiles, one on top of the other. Nothing here asks an engine.

What carries a plan out (this machine's engine or Cloud Build) goes through its steps in order, and skips those whose
image exists: a reference's tag stands for the content.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hvdcloud.errors import UsageError
from hvdcloud.image.plan import base_images, context, custom_base, own_dockerfile, requirements, versions
from hvdcloud.image.plan.sources import Sources, find_sources

if TYPE_CHECKING:
    from hvdcloud.config.model import ImageConfig

# Containers inherit an image's labels: none of those that mark a cluster's objects may be here.
LABEL = "hvdcloud-image"
CONTROLLERS = ("gloo", "mpi")
_OWN_DOCKERFILE = "hvdcloud/user:"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""What a processor is called in wheel names, and by engines and registries."""
_FIX_REQUIREMENTS = (
    "correct what pip names, in the file of image.requirements or in a package, then `hvdcloud build` again"
)
_FIX_DOWNLOADS = "check that PyPI can be reached, image.ca_bundle and image.find_links, then `hvdcloud build` again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One image and how it is built.

    Attributes:
        reference: its name, with a tag that stands for its content.
        what: it in words, for messages.
        context: what is sent to the builder.
        dockerfile: path in the context.
        target: the stage that is the image; "": the last one.
        arguments: those that decide the content, and the framework's index.
        labels: of the image.
        pip_hint: what to do if it is pip that fails.
        needs: references of the images of earlier steps that it is built from.
    """

    reference: str
    what: str
    context: context.Context
    dockerfile: str
    target: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    pip_hint: str = _FIX_DOWNLOADS
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePlan:
    """The image that is wanted, and what it is made of.

    Attributes:
        reference: the image's name: `hvdcloud/project:HASH`; HASH stands for the content.
        steps: in the order in which they are built. The last one's image is the one wanted, maybe under another name.
        architecture: of the nodes, in an engine's words: `amd64`; "": the engine's own.
    """

    reference: str
    steps: tuple[Step, ...]
    architecture: str = ""

    @property
    def last(self) -> Step:
        return self.steps[-1]

    @property
    def own_dockerfile(self) -> Step | None:
        """The step that builds `image.dockerfile`."""
        return next((step for step in self.steps if step.reference.startswith(_OWN_DOCKERFILE)), None)

    def until(self, step: Step) -> ImagePlan:
        """What has to be built for one of its steps."""
        return replace(self, reference=step.reference, steps=self.steps[: self.steps.index(step) + 1])


def plan_image(
    image_config: ImageConfig,
    *,
    project_dir: Path,
    machine: str | None = None,
    base: custom_base.Base | None = None,
    needs: custom_base.Needs | None = None,
    own_image: str = "",
) -> ImagePlan:
    """What to build for the `image` section of hvdcloud.yaml.

    Args:
        image_config: its paths are relative to `project_dir`.
        machine: the processor that it is for, as in wheel names. None: this machine's.
        base: what `image.base` is in the engine. None: its reference says so, with a digest.
        needs: what the user's own base image has to be able to do.
        own_image: the engine's id of what `image.dockerfile` makes. "": not known; the files that are sent for it, most
            of which it may not copy, stand for it.

    Raises:
        UsageError: no such framework, device and version, or a file that the configuration names is missing or will
            not do.
    """
    row = None
    if image_config.base is None:
        row = versions.find(image_config.framework, image_config.device, image_config.version)
        row = replace(row, donor=base_images.pinned(row.donor))
    sources = find_sources(
        find_links=image_config.find_links, ca_bundle=image_config.ca_bundle, project_dir=project_dir, machine=machine
    )
    own = own_dockerfile.read(project_dir, image_config.dockerfile) if image_config.dockerfile is not None else None
    steps = []
    if own is not None and not own.on_ours:
        _refuse_unused(own, image_config)
        row = None
        steps.append(_own_dockerfile(own, below=None))
        made = steps[-1].reference
        base = custom_base.Base(reference=made, identity=own_image or made, dockerfile=own.path)
    wanted = None
    if image_config.requirements is not None:
        wanted = requirements.read(project_dir, image_config.requirements, own_base=row is None)
    if row is not None:
        needs = None
        builder = _builder(row, sources)
        steps += [builder, _base(row, sources, builder=builder)]
    else:
        base = base or custom_base.pinned(str(image_config.base))
        needs = needs or custom_base.Needs()
        builder = _own_builder(base, sources, image_config, below=steps[-1:])
        steps += [builder, _own(base, sources, image_config, builder=builder, needs=needs)]
    if wanted is not None:
        steps.append(_project(row, sources, builder=builder, below=steps[-1], wanted=wanted))
    if own is not None and own.on_ours:
        steps.append(_own_dockerfile(own, below=steps[-1]))
        controllers = (needs.controller,) if needs else CONTROLLERS
        steps.append(_checked(steps[-1], own_image=own_image, controllers=controllers))
    return ImagePlan(
        reference=f"hvdcloud/project:{steps[-1].context.digest()}",
        steps=tuple(steps),
        architecture=ARCHITECTURES.get(machine or "", ""),
    )


def _builder(row: versions.Row, sources: Sources) -> Step:
    """The image with the compilers: with a name of its own it survives `docker image prune`."""
    base_image = base_images.pinned(base_images.DEBIAN)
    sent = context.builder_context(row, sources, base_image=base_image)
    arguments = {
        "BASE_IMAGE": base_image,
        "FRAMEWORK": row.framework,
        "FRAMEWORK_PACKAGE": row.package,
        "FRAMEWORK_LOCK": row.lock,
        "HOROVOD_VERSION": row.horovod,
        "HOROVOD_SHA256": row.horovod_sha256,
        "HOROVOD_PATCHES": " ".join(row.patches),
        **_index(row, sources),
    }
    optional = {
        "FRAMEWORK_ENVIRONMENT": " ".join(f"{name}={value}" for name, value in row.environment),
        "CAPABILITIES": " ".join(row.capabilities) if row.cuda else "",
        "CUDA_DONOR": row.donor,
        "TOOLKIT_LOCK": row.toolkit,
    }
    arguments |= {name: value for name, value in optional.items() if value}
    return Step(
        reference=f"hvdcloud/builder:{row.label}-{sent.digest()}",
        what=f"the compilers, {row.framework} and Horovod",
        context=sent,
        dockerfile=f"dockerfiles/{context.BUILDER_DOCKERFILE}",
        target="builder",
        arguments=arguments,
    )


def _base(row: versions.Row, sources: Sources, *, builder: Step) -> Step:
    base_image = base_images.pinned(base_images.DEBIAN)
    sent = context.base_context(row, sources, base_image=base_image, builder=builder.reference)
    digest = sent.digest()
    arguments = {"BASE_IMAGE": base_image, "BUILDER": builder.reference}
    if row.cuda:
        capabilities = " ".join(row.capabilities)
        arguments |= {"CUDA": row.cuda, "NCCL": row.nccl, "CAPABILITIES": capabilities, "NVIDIA_VISIBLE_DEVICES": "all"}
    # Of all that is built on it too.
    found = {row.framework: row.package.partition("==")[2], "horovod": row.horovod, "python": versions.PYTHON_VERSION}
    found |= {"cuda": row.cuda, "nccl": row.nccl, "keras": row.keras, "cuda-donor": row.donor}
    return Step(
        reference=f"hvdcloud/base:{row.label}-{digest}",
        what="the base image",
        context=sent,
        dockerfile=f"dockerfiles/{context.BASE_DOCKERFILE}",
        arguments=arguments,
        labels={LABEL: digest, **base_images.version_labels(found), **base_images.labels(base_image)},
        needs=(builder.reference,),
    )


def _project(
    row: versions.Row | None, sources: Sources, *, builder: Step, below: Step, wanted: context.Requirements
) -> Step:
    if row is None:
        arguments = {"PYTHON": custom_base.PYTHON}
        sent = custom_base.project_context(sources, requirements=wanted, node=below.reference)
    else:
        arguments = _index(row, sources)
        sent = context.project_context(row, sources, requirements=wanted, base=below.reference)
    digest = sent.digest()
    return Step(
        reference=f"hvdcloud/project:{digest}",
        what=f"the layer for {wanted.path}",
        context=sent,
        dockerfile=f"dockerfiles/{context.PROJECT_DOCKERFILE}",
        arguments={"BUILDER": builder.reference, "BASE": below.reference, "REQUIREMENTS": wanted.path, **arguments},
        labels={LABEL: digest},
        pip_hint=_FIX_REQUIREMENTS,
        needs=(builder.reference, below.reference),
    )


def _own_builder(base: custom_base.Base, sources: Sources, image_config: ImageConfig, *, below: Sequence[Step]) -> Step:
    """A copy of the user's image with compilers and what a node needs; kept like our own builder.

    Args:
        below: the step that builds the user's image, if one does.
    """
    framework, device = image_config.framework, image_config.device
    row = versions.ROWS[0]
    sent = custom_base.builder_context(base, sources, framework=framework, device=device)
    return Step(
        reference=f"hvdcloud/own-builder:{framework}-{device}-{sent.digest()}",
        what=base.what,
        context=sent,
        dockerfile=f"dockerfiles/{custom_base.BUILDER_DOCKERFILE}",
        arguments={
            "OWN": base.reference,
            "FRAMEWORK": framework,
            "DEVICE": device,
            "HOROVOD_VERSION": row.horovod,
            "HOROVOD_SHA256": row.horovod_sha256,
            "HOROVOD_PATCHES": custom_base.horovod_patches(framework),
        },
        needs=tuple(step.reference for step in below),
    )


def _own(
    base: custom_base.Base, sources: Sources, image_config: ImageConfig, *, builder: Step, needs: custom_base.Needs
) -> Step:
    sent = custom_base.node_context(base, sources, builder=builder.reference, needs=needs)
    digest = sent.digest()
    # What the user's Dockerfile starts from is not ours to say.
    on = {} if base.dockerfile else base_images.labels(base.reference, base.digest)
    return Step(
        reference=f"hvdcloud/own:{image_config.framework}-{image_config.device}-{digest}",
        what=base.what,
        context=sent,
        dockerfile=f"dockerfiles/{custom_base.DOCKERFILE}",
        arguments={
            "BUILDER": builder.reference,
            "OWN": base.reference,
            "CONTROLLER": needs.controller,
            "CAPABILITY": needs.capability,
        },
        labels={LABEL: digest, **on},
        needs=(builder.reference,),
    )


def _own_dockerfile(own: own_dockerfile.OwnDockerfile, *, below: Step | None) -> Step:
    """What the user's Dockerfile makes, of our image below or of another one."""
    sent = own.context(base=below.reference if below else "")
    return Step(
        reference=f"{_OWN_DOCKERFILE}{sent.digest()}",
        what=f"image.dockerfile {own.path}",
        context=sent,
        dockerfile=own.path,
        arguments={own_dockerfile.BASE_ARGUMENT: below.reference} if below else {},
        pip_hint=f"correct {own.path}, then `hvdcloud build` again",
        needs=(below.reference,) if below else (),
    )


def _refuse_unused(own: own_dockerfile.OwnDockerfile, image_config: ImageConfig) -> None:
    """Raises UsageError: a Dockerfile that does not begin with our image leaves a key without a meaning."""
    for key, value in (("base", image_config.base), ("version", image_config.version)):
        if value is not None:
            raise UsageError(
                f"image.{key} is {value}, but image.dockerfile {own.path} does not begin with that image",
                hint=f"begin {own.path} with ARG BASE and FROM ${{BASE}}, or take image.{key} out of hvdcloud.yaml",
            )


def _checked(user: Step, *, own_image: str, controllers: tuple[str, ...]) -> Step:
    """The user's image once more, proven to be a node; what starts there is ours."""
    sent = own_dockerfile.checked_context(own_image or user.reference, controllers=controllers)
    digest = sent.digest()
    return Step(
        reference=f"hvdcloud/project:{digest}",
        what=user.what,
        context=sent,
        dockerfile=f"dockerfiles/{own_dockerfile.CHECKED_DOCKERFILE}",
        arguments={"IMAGE": user.reference, "CONTROLLERS": " ".join(controllers)},
        labels={LABEL: digest},
        needs=(user.reference,),
    )


def _index(row: versions.Row, sources: Sources) -> dict[str, str]:
    """Where the framework's wheel comes from; if the user has it, its index is not asked at all."""
    return {"FRAMEWORK_INDEX_URL": row.index} if row.index and not context.has_framework(row, sources) else {}
