"""What has to be built for an image: a few Dockerfiles, one on top of the other. Nothing here asks an engine.

What carries a plan out (this machine's engine or Cloud Build) goes through its steps in order, and skips those whose
image exists: a reference's tag stands for the content.

Four images build on each other: `builder` (compilers, framework and Horovod, where a run needs that), `base` (what is
the same for everybody, and published), `node` (with the node program: what every project's nodes run) and the project's
own, which adds its requirements. dockerfiles/ says what is in each.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hvdcloud.errors import UsageError
from hvdcloud.image.plan import base_images, custom_base, own_dockerfile, requirements, versions
from hvdcloud.image.plan.context import (
    STACKS_LOCK,
    Context,
    Entry,
    Step,
    ca_entry,
    dockerfile_entries,
    dockerfiles,
    locked,
    node_program,
    stacks_wheels,
    wheel_entries,
)
from hvdcloud.image.plan.sources import Sources, Wheel, find_sources, is_framework, local_wheels, no_index

if TYPE_CHECKING:
    from hvdcloud.config.model import ImageConfig

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""What a processor is called in wheel names, and by engines and registries."""
_BASE_FILES = ("check_ranks.py", "hvdcloud_requirements.pth", "hvdcloud_requirements.py")
_FIX_REQUIREMENTS = (
    "correct what pip names, in the file of image.requirements or in a package, then `hvdcloud build` again"
)


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
        return next((step for step in self.steps if step.reference.startswith(own_dockerfile.REPOSITORY)), None)

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
        needs: what the run needs of the image.
        own_image: the engine's id of what `image.dockerfile` makes. "": not known; the files that are sent for it, most
            of which it may not copy, stand for it.

    Raises:
        UsageError: no such framework, device and version, or a file that the configuration names is missing or will
            not do.
    """
    row, needs = None, needs or custom_base.Needs()
    if image_config.base is None:
        row = versions.find(image_config.framework, image_config.device, image_config.version, horovod=needs.horovod)
        row = replace(row, donor=base_images.pinned(row.donor))
    sources = find_sources(
        find_links=image_config.find_links, ca_bundle=image_config.ca_bundle, project_dir=project_dir, machine=machine
    )
    own = own_dockerfile.read(project_dir, image_config.dockerfile) if image_config.dockerfile is not None else None
    steps = []
    if own is not None and not own.on_ours:
        _refuse_unused(own, image_config)
        row = None
        steps.append(own_dockerfile.user_step(own, below=None))
        made = steps[-1].reference
        base = custom_base.Base(reference=made, identity=own_image or made, dockerfile=own.path)
    wanted = None
    if image_config.requirements is not None:
        wanted = requirements.read(project_dir, image_config.requirements, own_base=row is None)
        path = os.path.normpath(image_config.requirements)
    if row is not None:
        steps += [builder_step(row, sources)] if row.horovod else []
        steps.append(base_step(row, sources, builder=steps[-1] if row.horovod else None))
        builder, proof = node_step(row, base=steps[-1]), row.proof
        steps.append(builder)
    else:
        base = base or custom_base.pinned(str(image_config.base))
        framework = needs.framework(image_config)
        kind, proof = f"{framework}-{image_config.device}", needs.proof(framework)
        builder = custom_base.builder_step(base, sources, kind, needs=needs, below=steps[-1:])
        steps += [builder, custom_base.node_step(base, sources, kind, builder=builder, needs=needs)]
    if wanted is not None:
        below = steps[-1]
        steps.append(project_step(row or needs, sources, builder=builder, below=below, path=path, wanted=wanted))
    if own is not None and own.on_ours:
        steps.append(own_dockerfile.user_step(own, below=steps[-1]))
        steps.append(own_dockerfile.checked_step(steps[-1], own_image=own_image, proof=proof))
    return ImagePlan(
        reference=f"hvdcloud/project:{steps[-1].context.digest()}",
        steps=tuple(steps),
        architecture=ARCHITECTURES.get(machine or "", ""),
    )


def builder_step(row: versions.Row, sources: Sources) -> Step:
    """The image with the framework, compilers and Horovod: with a name of its own it survives `docker image prune`."""
    wanted = {
        "BASE_IMAGE": base_images.pinned(base_images.DEBIAN),
        "FRAMEWORK": row.framework,
        **_framework(row),
        "HOROVOD_VERSION": row.horovod,
        "HOROVOD_SHA256": row.horovod_sha256,
        "HOROVOD_PATCHES": " ".join(row.patches),
        "CAPABILITIES": " ".join(row.capabilities),
        "CUDA_DONOR": row.donor,
        "TOOLKIT_LOCK": row.toolkit,
    }
    arguments = {name: value for name, value in wanted.items() if value}
    scripts = [script.name for script in (dockerfiles() / "build").iterdir()]
    names = ["builder.Dockerfile", *(f"locks/{lock}" for lock in _locks(row)), *(f"build/{name}" for name in scripts)]
    names += [f"patches/horovod-{row.horovod}-{patch}.patch" for patch in row.patches]
    sent = Context(
        hashed=dockerfile_entries(*names),
        unhashed=(ca_entry(sources), Entry(path="dockerfiles/patches"), *wheel_entries(_wheels(row, sources))),
        salt=(*map("=".join, arguments.items()), sources.machine),
    )
    return Step(
        reference=f"hvdcloud/builder:{row.label}-{sent.digest()}",
        what=f"the compilers, {row.framework} and Horovod",
        context=sent,
        dockerfile="dockerfiles/builder.Dockerfile",
        target="builder",
        arguments=arguments | _index(row, sources),
    )


def base_step(row: versions.Row, sources: Sources, *, builder: Step | None) -> Step:
    """What nodes run, but for the node program: the same for everybody.

    Args:
        builder: of a row with Horovod. Without one nothing is compiled: the same build installs the framework.
    """
    base_image = base_images.pinned(base_images.DEBIAN)
    arguments = {"BASE_IMAGE": base_image, "PROOF": row.proof}
    wheels = stacks_wheels(sources, python=versions.PYTHON_VERSION)
    names = [STACKS_LOCK, *(f"files/{name}" for name in _BASE_FILES)]
    if builder is not None:
        arguments |= {"BUILDER": builder.reference, "OPEN_MPI": "openmpi-bin"}
        parts = ["base.Dockerfile"]
    else:
        arguments |= _framework(row)
        parts = ["plain-builder.Dockerfile", "base.Dockerfile"]
        names += ["build/framework.sh", "build/pip", *(f"locks/{lock}" for lock in _locks(row))]
        wheels += _wheels(row, sources)
    if row.cuda:
        capabilities = " ".join(row.capabilities)
        arguments |= {"CUDA": row.cuda, "NCCL": row.nccl, "CAPABILITIES": capabilities, "NVIDIA_VISIBLE_DEVICES": "all"}
    dockerfile = Entry(
        path="dockerfiles/base.Dockerfile", content=b"".join((dockerfiles() / part).read_bytes() for part in parts)
    )
    sent = Context(
        hashed=(dockerfile, *dockerfile_entries(*names)),
        unhashed=(ca_entry(sources), *wheel_entries(wheels)),
        salt=(*map("=".join, arguments.items()), sources.machine),
    )
    # Of all that is built on it too.
    found = {row.framework: row.package.partition("==")[2], "horovod": row.horovod, "python": versions.PYTHON_VERSION}
    found |= {"cuda": row.cuda, "nccl": row.nccl, "keras": row.keras, "cuda-donor": row.donor}
    return Step(
        reference=f"hvdcloud/base:{row.label}-{sent.digest()}",
        what=f"{row.framework} {row.version} for {row.device}",
        context=sent,
        dockerfile=dockerfile.path,
        arguments=arguments | ({} if builder else _index(row, sources)),
        labels={**base_images.version_labels(found), **base_images.labels(base_image)},
        needs=(builder.reference,) if builder else (),
    )


def node_step(row: versions.Row, *, base: Step) -> Step:
    """The image that nodes run: `base` and the node program."""
    files = dockerfile_entries("node.Dockerfile", "files/hvdcloud-node", "files/sshd_config")
    sent = Context(hashed=(*files, *node_program()), salt=(base.reference,))
    return Step(
        reference=f"hvdcloud/node:{row.label}-{sent.digest()}",
        what="the node program",
        context=sent,
        dockerfile="dockerfiles/node.Dockerfile",
        arguments={"BASE": base.reference},
        needs=(base.reference,),
    )


def project_step(
    of: versions.Row | custom_base.Needs, sources: Sources, *, builder: Step, below: Step, path: str, wanted: Context
) -> Step:
    """The layer with a project's requirements.

    Args:
        of: the row of our image, or what the user's own has to do.
        path: of the requirements file, relative to the project's folder.
        wanted: what is sent of that.
    """
    if isinstance(of, custom_base.Needs):
        # What the image has is known in the image only.
        constraints, wheels = [f"-c {custom_base.CONSTRAINTS}"], custom_base.wheels_of(sources, of, locked=False)
        arguments = {"PYTHON": custom_base.PYTHON}
    else:
        # What the base image has is not needed again, and TensorFlow's other name means what it has.
        there = _pinned(of) | {name for name, equals, _ in (c.partition("==") for c in of.constraints) if equals}
        constraints = [*_constraints(of)]
        wheels = [each for each in local_wheels(sources) if each.project not in there]
        arguments = _index(of, sources)
    wheels_folder, *wheel_files = wheel_entries(wheels)
    sent = Context(
        hashed=(
            *dockerfile_entries("project.Dockerfile", "build/pip", "requirements/tool"),
            Entry(path="constraints.txt", content="".join(f"{line}\n" for line in constraints).encode()),
            *wanted.hashed,
            *wheel_files,
        ),
        unhashed=(ca_entry(sources), wheels_folder, *wanted.unhashed),
        salt=(below.reference, path),
    )
    return Step(
        reference=f"hvdcloud/project:{sent.digest()}",
        what=f"the layer for {path}",
        context=sent,
        dockerfile="dockerfiles/project.Dockerfile",
        arguments={"BUILDER": builder.reference, "BASE": below.reference, "REQUIREMENTS": path, **arguments},
        pip_hint=_FIX_REQUIREMENTS,
        needs=tuple(dict.fromkeys((builder.reference, below.reference))),
    )


def _refuse_unused(own: own_dockerfile.OwnDockerfile, image_config: ImageConfig) -> None:
    """Raises UsageError: a Dockerfile that does not begin with our image leaves a key without a meaning."""
    for key, value in (("base", image_config.base), ("version", image_config.version)):
        if value is not None:
            raise UsageError(
                f"image.{key} is {value}, but image.dockerfile {own.path} does not begin with that image",
                hint=f"begin {own.path} with ARG BASE and FROM ${{BASE}}, or take image.{key} out of hvdcloud.yaml",
            )


def _framework(row: versions.Row) -> dict[str, str]:
    """Build arguments: which framework is installed."""
    wanted = {
        "FRAMEWORK_PACKAGE": row.package,
        "FRAMEWORK_LOCK": row.lock,
        "FRAMEWORK_ENVIRONMENT": " ".join(f"{name}={value}" for name, value in row.environment),
    }
    return {name: value for name, value in wanted.items() if value}


def _wheels(row: versions.Row, sources: Sources) -> list[Wheel]:
    """Local wheels of what builder and base install."""
    pinned = _pinned(row)
    return [
        wheel
        for wheel in local_wheels(sources)
        if wheel.project in pinned and (wheel.project != row.project or is_framework(wheel, row))
    ]


def _index(row: versions.Row, sources: Sources) -> dict[str, str]:
    """Where the framework's wheel comes from; if the user has it, or no index is to be asked, none is."""
    here = no_index(os.environ) or any(is_framework(wheel, row) for wheel in local_wheels(sources))
    return {"FRAMEWORK_INDEX_URL": row.index} if row.index and not here else {}


def _constraints(row: versions.Row) -> Iterator[str]:
    """For pip: what a requirement may not replace."""
    yield from (row.package, *([f"horovod=={row.horovod}"] if row.horovod else []), *row.constraints)
    for name, version in locked(dockerfiles() / "locks" / row.lock):
        if name == "numpy":
            major = int(version.partition(".")[0])
            yield f"numpy>={major},<{major + 1}"
        elif name.startswith("nvidia-nccl-"):
            yield f"{name}=={version}"


def _pinned(row: versions.Row) -> set[str]:
    """Projects that builder and base install, each at one version."""
    locks = dockerfiles() / "locks"
    return {row.project, *(name for lock in _locks(row) for name, _ in locked(locks / lock))}


def _locks(row: versions.Row) -> tuple[str, ...]:
    horovod = ("horovod.txt", row.toolkit) if row.horovod else ()
    return tuple(lock for lock in ("tools.txt", row.lock, *horovod, "node.txt") if lock)
