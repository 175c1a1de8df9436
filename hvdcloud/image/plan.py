"""What has to be built for an image: a few Dockerfiles, one on top of the other. Nothing here asks an engine.

Whoever carries a plan out (this machine's engine or Cloud Build) goes through its steps in order, and need not do those
whose image is there: a reference's tag stands for the content.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hvdcloud.image import context, versions
from hvdcloud.image.sources import Sources, find_sources

if TYPE_CHECKING:
    from hvdcloud.config import ImageConfig

# Containers inherit an image's labels: none of those that mark a cluster's objects may be here.
LABEL = "hvdcloud-image"
_FIX_REQUIREMENTS = "correct image.requirements in hvdcloud.yaml or the file it names, then `hvdcloud build` again"
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
        throw_away: a stage whose image the classic builder leaves behind without a name; "": none.
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
    throw_away: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePlan:
    """The image that is wanted, and what it is made of.

    Attributes:
        reference: the image's name: `hvdcloud/project:HASH`.
        digest: HASH, which stands for the content.
        row: its versions.
        steps: in the order in which they are built. The last one's image is the one wanted, maybe under another name.
    """

    reference: str
    digest: str
    row: versions.Row
    steps: tuple[Step, ...]

    @property
    def last(self) -> Step:
        return self.steps[-1]


def plan_image(image_config: ImageConfig, *, project_dir: Path) -> ImagePlan:
    """What to build for the `image` section of hvdcloud.yaml.

    Args:
        image_config: its paths are relative to `project_dir`.

    Raises:
        UsageError: no such framework, device and version, or a file that the configuration names is not there.
    """
    row = versions.find(image_config.framework, image_config.device, image_config.version)
    sources = find_sources(
        find_links=image_config.find_links, ca_bundle=image_config.ca_bundle, project_dir=project_dir
    )
    builder = _builder(row, sources)
    base = _base(row, sources, builder=builder)
    steps = [builder, base]
    requirements = image_config.requirements
    if requirements is not None and context.has_requirements(project_dir, requirements):
        steps.append(_project(row, sources, builder=builder, base=base, project_dir=project_dir, file=requirements))
    digest = steps[-1].context.digest()
    return ImagePlan(reference=f"hvdcloud/project:{digest}", digest=digest, row=row, steps=tuple(steps))


def _builder(row: versions.Row, sources: Sources) -> Step:
    """The image with the compilers: with a name of its own it survives `docker image prune`."""
    sent = context.builder_context(row, sources)
    arguments = {
        "FRAMEWORK": row.framework,
        "FRAMEWORK_PACKAGE": row.package,
        "FRAMEWORK_LOCK": row.lock,
        "HOROVOD_VERSION": row.horovod,
        "HOROVOD_SHA256": row.horovod_sha256,
        "HOROVOD_PATCHES": " ".join(row.patches),
        **_index(row, sources),
    }
    if row.donor:
        arguments["CUDA_DONOR"] = row.donor
    return Step(
        reference=f"hvdcloud/builder:{row.label}-{sent.digest()}",
        what=f"the compilers, {row.framework} and Horovod",
        context=sent,
        dockerfile=context.BUILDER_DOCKERFILE,
        target="builder",
        arguments=arguments,
        throw_away="horovod",
    )


def _base(row: versions.Row, sources: Sources, *, builder: Step) -> Step:
    sent = context.base_context(row, sources, builder=builder.reference)
    digest = sent.digest()
    return Step(
        reference=f"hvdcloud/base:{row.label}-{digest}",
        what="the base image",
        context=sent,
        dockerfile=context.BASE_DOCKERFILE,
        arguments={"BUILDER": builder.reference},
        labels={LABEL: digest},
        needs=(builder.reference,),
    )


def _project(row: versions.Row, sources: Sources, *, builder: Step, base: Step, project_dir: Path, file: str) -> Step:
    sent = context.project_context(row, sources, project_dir=project_dir, requirements=file, base=base.reference)
    digest = sent.digest()
    arguments = {"BUILDER": builder.reference, "BASE": base.reference, "REQUIREMENTS": file, **_index(row, sources)}
    return Step(
        reference=f"hvdcloud/project:{digest}",
        what=f"the layer for {file}",
        context=sent,
        dockerfile=context.PROJECT_DOCKERFILE,
        arguments=arguments,
        labels={LABEL: digest},
        pip_hint=_FIX_REQUIREMENTS,
        needs=(builder.reference, base.reference),
        throw_away="requirements",
    )


def _index(row: versions.Row, sources: Sources) -> dict[str, str]:
    """Where the framework's wheel comes from; if the user has it, its index is not asked at all."""
    return {"FRAMEWORK_INDEX_URL": row.index} if row.index and not context.has_framework(row, sources) else {}
