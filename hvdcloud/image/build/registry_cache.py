"""A registry as the cache of builds: a job on an empty engine pulls the images that another one has built.

The images that a project's image is made of have tags that stand for their content, so finding one of them is as good
as having built it: `REPOSITORY:HASH` is the project's image, as `hvdcloud push` calls it, `REPOSITORY:base-…` the
base image, `REPOSITORY:builder-…` the one with which a changed requirement is installed. (BuildKit's own exports
to a registry need containerd's image store, and with three images each would replace the one before.)
"""

from __future__ import annotations

import re
from typing import Any

from hvdcloud.errors import HvdcloudError, ImageError
from hvdcloud.image.engine_reports import BuildEvent, Progress, inspected
from hvdcloud.image.plan.context import Step
from hvdcloud.image.plan.steps import ImagePlan
from hvdcloud.image.publish.transfer import pull, push

_PASSWORD_IN_URL = re.compile(r"://[^/\s@]+@")


def fetch(api: Any, repository: str, *, step: Step, progress: Progress) -> bool:
    """Pulls a step's image and gives it the step's name; False: the cache does not have it, or cannot be read."""
    name = f"{repository}:{tag_of(step)}"
    try:
        pull(api, name, progress=progress)
    except HvdcloudError as error:
        progress(BuildEvent(kind="output", text=f"not from the cache: {error.message}"))
        return False
    progress(BuildEvent(kind="output", text=f"from the cache: {name}, {step.what}"))
    api.tag(name, *step.reference.split(":"))
    return True


def store(api: Any, repository: str, *, plan: ImagePlan, progress: Progress) -> None:
    """Pushes the images of a plan that the engine has. One that cannot be is a warning: a cache only saves time."""
    for step in plan.steps:
        if inspected(api, step.reference) is None:
            continue
        name = f"{repository}:{tag_of(step)}"
        progress(BuildEvent(kind="image", text=f"{step.what}, to the cache as {name}"))
        try:
            _refuse_passwords(api, step)
            push(step.reference, name, progress=progress)
        except HvdcloudError as error:
            progress(BuildEvent(kind="warning", text=f"{step.what} is not in the cache: {error.message}; {error.hint}"))


def tag_of(step: Step) -> str:
    """What a step's image is called at a registry: `builder-ROW-HASH`, or HASH alone if it is a project's."""
    kind, _, tag = step.reference.removeprefix("hvdcloud/").partition(":")
    return tag if kind == "project" else f"{kind}-{tag}"


def _refuse_passwords(api: Any, step: Step) -> None:
    """An image's history has its build arguments, PIP_INDEX_URL among them."""
    if any(_PASSWORD_IN_URL.search(layer.get("CreatedBy") or "") for layer in api.history(step.reference)):
        raise ImageError(
            "its history holds the password of a package index",
            hint="name an index without one in PIP_INDEX_URL and PIP_EXTRA_INDEX_URL to have it cached",
        )
