"""What Cloud Build is asked for, as plain data. Nothing here sends a request.

https://cloud.google.com/build/docs/api/reference/rest/v1/projects.builds
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hvdcloud.image.build.registry_cache import tag_of
from hvdcloud.image.plan.steps import ImagePlan, Step
from hvdcloud.image.publish import registry

DOCKER = "gcr.io/cloud-builders/docker"
TIMEOUT = "7200s"
"""Compiling Horovod for CUDA and moving its images may take more than the hour that is Cloud Build's own default."""
DISK_GB = 200
"""A CUDA build holds its donor, three images and their layers on their way to the registry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """An object of Cloud Storage."""

    bucket: str
    name: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What a plan's images are called at the registry, and its steps in the build.

    Attributes:
        ids: reference of each step → its id, and the folder of its context: `builder`, `base`, `project`.
        content: reference of each step → `HOST/PATH:TAG`, with the tag by which `--cache-from` knows it too.
        wanted: all names of the image that is wanted; the first one's tag stands for its content.
    """

    ids: Mapping[str, str]
    content: Mapping[str, str]
    wanted: tuple[str, ...]

    def of(self, step: Step, plan: ImagePlan) -> tuple[str, ...]:
        """All names that a step's image gets."""
        own = () if step.reference == plan.reference else (self.content[step.reference],)
        return (*own, *(self.wanted if step is plan.last else ()))


def names_of(plan: ImagePlan, repository: str) -> Names:
    """The names of a plan's images: tags of one repository, so that no layer is stored twice.

    A tag of `image.repository` itself is given to the image that is wanted, beside the usual one.
    """
    path = registry.target_of("x:x", repository).rpartition(":")[0]
    ids: dict[str, str] = {}
    content: dict[str, str] = {}
    for step in plan.steps:
        # `builder` of `hvdcloud/builder:TAG`.
        kind = step.reference.rpartition("/")[2].partition(":")[0]
        ids[step.reference] = kind if kind not in ids.values() else f"{kind}-{len(ids) + 1}"
        content[step.reference] = f"{path}:{tag_of(step)}"
    content[plan.reference] = f"{path}:{plan.digest}"
    wanted = (content[plan.reference], registry.target_of(plan.reference, repository))
    return Names(ids=ids, content=content, wanted=tuple(dict.fromkeys(wanted)))


def content_tag(plan: ImagePlan) -> str:
    """Of a build: what it builds."""
    return f"hvdcloud-image-{plan.digest}"


def build_request(
    plan: ImagePlan,
    todo: Sequence[Step],
    *,
    names: Names,
    source: Source,
    attempt: str,
    project: str,
    logs: str,
    machine_type: str,
    service_account: str | None = None,
) -> dict[str, Any]:
    """The Build to create.

    Args:
        todo: those of the plan's steps whose images are not at the registry, in order; the last one always.
        source: the contexts, each in a folder with its step's id as name.
        attempt: a tag that no other build has.
        logs: `gs://BUCKET/FOLDER` for the log.
    """
    steps: list[dict[str, Any]] = []
    for step in todo:
        tags, step_id = names.of(step, plan), names.ids[step.reference]
        # A dollar sign would be one of Cloud Build's own substitutions.
        arguments = [argument.replace("$", "$$") for argument in _build_arguments(step, tags=tags, names=names)]
        steps.append({"id": step_id, "name": DOCKER, "dir": step_id, "args": arguments})
        # At once, not only when everything has been built: a requirement that can't be installed must not cost the
        # compilation that went before.
        others = [tag for tag in tags if tag not in names.wanted]
        steps += [{"id": f"push-{step_id}", "name": DOCKER, "args": ["push", tag]} for tag in others]
    stored = {"bucket": source.bucket, "object": source.name, "generation": str(source.generation)}
    request: dict[str, Any] = {
        "source": {"storageSource": stored},
        "steps": steps,
        "images": list(names.wanted),
        "timeout": TIMEOUT,
        "logsBucket": logs,
        # Of the log's two places the one that is read here: it grows while the build runs.
        "options": {"machineType": machine_type, "diskSizeGb": str(DISK_GB), "logging": "GCS_ONLY"},
        "tags": ["hvdcloud", content_tag(plan), attempt],
    }
    if service_account is not None:
        request["serviceAccount"] = f"projects/{project}/serviceAccounts/{service_account}"
    return request


def _build_arguments(step: Step, *, tags: Iterable[str], names: Names) -> Iterator[str]:
    """Of the docker command. What an earlier build has pushed is pulled by the Dockerfile's own FROM."""
    yield from ("build", "--file", step.dockerfile)
    for tag in tags:
        yield from ("--tag", tag)
    if step.target:
        yield from ("--target", step.target)
    for name, value in step.arguments.items():
        yield from ("--build-arg", f"{name}={names.content.get(value, value)}")
    for name, value in step.labels.items():
        yield from ("--label", f"{name}={value}")
    yield "."
