"""`image.base`: the user's own base image, and what is sent to the engine to make a node of it.

Its content is not known before it is built from, so what depends on that (its Python, its framework's version, whether
it has Horovod and Open MPI, where a run needs them) is found out inside the build: dockerfiles/own/.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from docker.errors import APIError
from docker.utils import parse_repository_tag

from hvdcloud.errors import ImageError, UsageError
from hvdcloud.image.engine_reports import BuildEvent, Progress, inspected, other_architecture
from hvdcloud.image.plan import base_images, context, versions
from hvdcloud.image.plan.context import (
    STACKS_LOCK,
    Context,
    Entry,
    Step,
    ca_entry,
    dockerfile_entries,
    dockerfiles,
    node_program,
    stacks_wheels,
    wheel_entries,
)
from hvdcloud.image.plan.sources import Sources, Wheel, local_wheels
from hvdcloud.image.publish import registry
from hvdcloud.image.publish.transfer import pull

if TYPE_CHECKING:
    from hvdcloud.config.model import ImageConfig, Launcher

# The image's Python, under a name that is the same in every image: written by dockerfiles/own/prepare.py.
PYTHON = "/opt/hvdcloud/python"
CONSTRAINTS = "/opt/own/constraints.txt"
LOCKS = ("node.txt", "tools.txt")
_FILES = ("check_ranks.py", "hvdcloud-node", "hvdcloud_requirements.pth", "hvdcloud_requirements.py", "sshd_config")
_DIGEST = re.compile(r"@(sha256:[0-9a-f]{64})$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The user's own base image.

    Attributes:
        reference: as hvdcloud.yaml names it.
        identity: stands for its content: the digest in the reference, else the engine's id.
        digest: at its registry; "": the engine has it from none, or has not got it yet.
        dockerfile: the user's Dockerfile that makes it; "": it is what `image.base` names.
    """

    reference: str
    identity: str
    digest: str = ""
    dockerfile: str = ""

    @property
    def what(self) -> str:
        """It in words, for messages."""
        return f"image.dockerfile {self.dockerfile}" if self.dockerfile else f"image.base {self.reference}"

    @property
    def may_move(self) -> str:
        """For a tag of a registry: what it is now, and how to stay with that; "": it is by digest, or made here."""
        if not self.digest or is_pinned(self.reference):
            return ""
        stays = f"image.base: {self.reference}@{self.digest}"
        return f"{self.what} is a tag, which its owner may move; this image is built on what it is now: {stays}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a run needs of its image.

    Attributes:
        launcher: `run.launcher`: Horovod and Open MPI are in the image for horovod alone.
        controller: `run.controller`: what Horovod has to work with in the user's own image; in hvdcloud's it is both.
        capability: compute capability of the nodes' GPUs, if they are known: `7.5`; checked of the user's own image.
    """

    launcher: Launcher = "horovod"
    controller: str = "gloo"
    capability: str = ""

    @property
    def horovod(self) -> bool:
        return self.launcher == "horovod"

    def framework(self, image_config: ImageConfig) -> str:
        """What the user's own image has to have: `any` where the launcher needs none and hvdcloud.yaml names none."""
        named = self.launcher != "each" or "framework" in image_config.model_fields_set
        return image_config.framework if named else "any"

    def proof(self, framework: str) -> str:
        """What has to work in the user's own image, as dockerfiles/files/check_ranks.py takes it."""
        return {"horovod": self.controller, "torchrun": "torchrun", "each": framework}[self.launcher]


def pinned(reference: str) -> Base:
    """The image of a reference with a digest; no engine is asked. Raises UsageError: it is a tag, which may move."""
    digest = _DIGEST.search(reference)
    if digest is None:
        message = f"image.base is {reference}, a tag: only an engine that has the image knows what is in it"
        raise UsageError(message, hint=f"write it as NAME@sha256:…; `docker pull {reference}` prints the digest")
    return Base(reference=reference, identity=digest[1], digest=digest[1])


def is_pinned(reference: str) -> bool:
    """Whether a reference says which bytes it means."""
    return _DIGEST.search(reference) is not None


def find(api: Any, reference: str) -> Base | None:
    """The image in the engine; None if it has none. Raises ImageError: the engine does not take the reference."""
    try:
        found = inspected(api, reference)
    except APIError as error:
        message = f"image.base: the engine can't use {reference}: {error.explanation or error}"
        raise ImageError(message, hint="correct image.base in hvdcloud.yaml") from error
    if found is None:
        return None
    if is_pinned(reference):
        return pinned(reference)
    return Base(reference=reference, identity=str(found["Id"]), digest=_digest_of(reference, found))


def _digest_of(reference: str, found: Mapping[str, Any]) -> str:
    """Under which the engine pulled an image by this reference, or pushed it; "": neither."""
    repository = parse_repository_tag(reference)[0].removeprefix("docker.io/").removeprefix("library/")
    known = (entry.partition("@") for entry in found.get("RepoDigests") or ())
    return next((digest for name, _, digest in known if name == repository), "")


def have(api: Any, reference: str, *, progress: Progress, architecture: str = "") -> Base:
    """The image in the engine, pulled if missing: as with Docker's own FROM, a newer one is not looked for.

    Args:
        architecture: that it has to be for: `amd64`; "": any.

    Raises:
        ImageError: it can't be pulled, or there is none for this architecture.
        CredentialsError: it is in a registry of Google's, and there are no credentials.
    """
    found = find(api, reference)
    if found is None or other_architecture(api, reference, architecture):
        progress(BuildEvent(kind="image", text=f"{reference}, which is pulled"))
        try:
            pull(api, reference, progress=progress, architecture=architecture)
        except ImageError as error:
            host = registry.host_of(reference)
            where = "" if host == "docker.io" else f" {host}"
            raise ImageError(
                f"image.base: {reference} is not in the engine and can't be pulled: {error.message}",
                hint=f"correct image.base in hvdcloud.yaml; if the image is private: docker login{where}; "
                f"`docker pull {reference}` tries it alone",
            ) from error
        found = find(api, reference)
    other = other_architecture(api, reference, architecture)
    if found is None or other:
        raise ImageError(
            f"image.base: {reference} is for {other or 'another architecture'}, and the nodes are {architecture}",
            hint=f"name an image for linux/{architecture} in image.base",
        )
    return found


def builder_step(base: Base, sources: Sources, kind: str, *, needs: Needs, below: Sequence[Step]) -> Step:
    """A copy of the user's image with what a node needs, and compilers for Horovod; kept like our own builder.

    Args:
        kind: the image's framework and device: `torch-cuda`, `any-cpu`.
        below: the step that builds the user's image, if one does.
    """
    framework, _, device = kind.partition("-")
    arguments = {"FRAMEWORK": framework, "DEVICE": device}
    names = ["own-builder.Dockerfile", "build/pip", "own/prepare.sh", "own/prepare.py"]
    names += [f"locks/{lock}" for lock in _locks(needs)]
    if needs.horovod:
        row = versions.ROWS[0]
        arguments |= {"HOROVOD_VERSION": row.horovod, "HOROVOD_SHA256": row.horovod_sha256}
        arguments |= {"HOROVOD_PATCHES": _horovod_patches(framework)}
        names += ["build/horovod.sh", *(f"patches/{file.name}" for file in (dockerfiles() / "patches").iterdir())]
    patches, wheels = Entry(path="dockerfiles/patches"), wheels_of(sources, needs, locked=True)
    sent = Context(
        hashed=dockerfile_entries(*names),
        unhashed=(ca_entry(sources), patches, *wheel_entries(wheels)),
        salt=(base.identity, *map("=".join, arguments.items()), sources.machine),
    )
    return Step(
        reference=f"hvdcloud/own-builder:{kind}-{sent.digest()}",
        what=base.what,
        context=sent,
        dockerfile="dockerfiles/own-builder.Dockerfile",
        arguments={"OWN": base.reference, **arguments},
        needs=tuple(step.reference for step in below),
    )


def node_step(base: Base, sources: Sources, kind: str, *, builder: Step, needs: Needs) -> Step:
    """The image as a node; the tag of `builder`, the copy with what a node needs, stands for its content."""
    proof = needs.proof(kind.partition("-")[0])
    arguments = {"BUILDER": builder.reference, "PROOF": proof, "CAPABILITY": needs.capability}
    names = ("own.Dockerfile", "own/install.py", "own/check_node.py", *(f"files/{name}" for name in _FILES))
    sent = Context(
        hashed=(*dockerfile_entries(*names, STACKS_LOCK), *node_program()),
        unhashed=(ca_entry(sources), *wheel_entries(stacks_wheels(sources, python=None))),
        salt=(base.identity, *map("=".join, arguments.items())),
    )
    return Step(
        reference=f"hvdcloud/own:{kind}-{sent.digest()}",
        what=base.what,
        context=sent,
        dockerfile="dockerfiles/own.Dockerfile",
        arguments={"OWN": base.reference, **arguments},
        # What the user's Dockerfile starts from is not ours to say.
        labels={} if base.dockerfile else base_images.labels(base.reference, base.digest),
        needs=(builder.reference,),
    )


def _horovod_patches(framework: str) -> str:
    """Versions of the framework, each with the patches that Horovod needs from there on: `2.1:a 2.9:a,b`."""
    rows = [row for row in versions.ROWS if row.framework == framework and row.horovod]
    return " ".join(sorted({f"{row.version}:{','.join(row.patches)}" for row in rows}))


def _locks(needs: Needs) -> tuple[str, ...]:
    return ("horovod.txt", *LOCKS) if needs.horovod else LOCKS


def wheels_of(sources: Sources, needs: Needs, *, locked: bool) -> list[Wheel]:
    """Local wheels: those of the locks' projects, or all others but the frameworks', which the image brings."""
    folder = dockerfiles() / "locks"
    pinned = {name for lock in _locks(needs) for name, _ in context.locked(folder / lock)}
    frameworks = {row.project for row in versions.ROWS}
    wheels = [wheel for wheel in local_wheels(sources, python=None) if wheel.project not in frameworks]
    return [wheel for wheel in wheels if (wheel.project in pinned) is locked]
