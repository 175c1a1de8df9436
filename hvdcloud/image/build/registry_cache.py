"""A registry as the cache of builds: what one engine built, another with nothing on its disk need not build again.

A CI job starts on an empty engine. The images that a project's image is made of have tags that stand for their content,
so finding one of them at a registry is as good as having built it:

    REPOSITORY:HASH               the project's image, under the same tag as `hvdcloud push` gives it
    REPOSITORY:base-ROW-HASH      the base image
    REPOSITORY:builder-ROW-HASH   the builder image, with which a changed requirement is installed

Reading (`--cache-from`) and writing (`--cache-to`) are two options, as docker's are: the build of a pull request
reads the cache without the right to write it, and `--push` sends what nodes run, not the gigabyte of the builder image.
A cache only saves time: what can't be read is built, what can't be written is a warning. Anyone who may write to the
repository decides what is in the images of those who read it.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field
from typing import Any

from hvdcloud.errors import HvdcloudError, ImageError, UsageError
from hvdcloud.image import engine_stream
from hvdcloud.image.engine_stream import BuildEvent, Progress, inspected
from hvdcloud.image.plan.steps import LABEL, ImagePlan, Step
from hvdcloud.image.publish import registry
from hvdcloud.image.publish.push import push

# https://github.com/distribution/reference/blob/v0.6.0/regexp.go
_PATH = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*(?::\d+)?(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)+")
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_PASSWORD_IN_URL = re.compile(r"://[^/\s@]+@")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """A repository that holds images, each under a tag for its content.

    Attributes:
        repository: `HOST/PATH`.
        tag: one more that may hold the image wanted; "": none.
    """

    repository: str
    tag: str = ""


def cache_from(text: str | None) -> Cache | None:
    """What `--cache-from HOST/PATH[:TAG]` names. Raises UsageError: that is not a repository."""
    return None if text is None else _parsed(text, option="--cache-from")


def cache_to(text: str | None) -> Cache | None:
    """What `--cache-to HOST/PATH` names. Raises UsageError: not a repository, or with a tag: each image has its own."""
    cache = None if text is None else _parsed(text, option="--cache-to")
    if cache and cache.tag:
        message = f"--cache-to {text} names a tag, but a cache has one for each image"
        raise UsageError(message, hint=f"--cache-to {cache.repository}")
    return cache


@dataclass(slots=True, kw_only=True)
class Reader:
    """Takes images from a cache instead of building them.

    Attributes:
        plan: whose images are wanted. The last one may also have the plan's tag there, or the cache's own.
        progress: also called with the reason why the cache is not used.
    """

    api: Any
    cache: Cache
    plan: ImagePlan
    progress: Progress
    _spare: list[str] = field(default_factory=list)

    def take(self, step: Step) -> bool:
        """Pulls a step's image, if the cache has it, and gives it the step's name."""
        return any(self._pulled(step, f"{self.cache.repository}:{tag}") for tag in self._tags(step))

    def tidy(self) -> None:
        """Removes the names under which images were pulled, and with them those that did not help.

        Not sooner: even the wrong image has layers that the next one to be pulled needs.
        """
        for name in self._spare:
            _remove(self.api, name)

    def _tags(self, step: Step) -> list[str]:
        first = [self.cache.tag, self.plan.digest] if step is self.plan.last else []
        return list(dict.fromkeys(tag for tag in (*first, tag_of(step)) if tag))

    def _pulled(self, step: Step, name: str) -> bool:
        was_here = inspected(self.api, name) is not None
        try:
            _pull(self.api, name, progress=self.progress)
        except HvdcloudError as error:
            self._say(f"not from the cache: {error.message}")
            return False
        labels = (inspected(self.api, name) or {}).get("Config", {}).get("Labels") or {}
        # Other labels say where an image comes from, not what it is. What a user's Dockerfile makes has none of ours.
        wanted = LABEL not in step.labels or labels.get(LABEL) == step.labels[LABEL]
        if wanted:
            self._say(f"from the cache: {name}, {step.what}")
            self.api.tag(name, *_split(step.reference))
        else:
            self._say(f"not from the cache: {name} holds something else than {step.what}")
        # The image wanted keeps its name at the registry, by which its digest is known.
        if not was_here and not (wanted and step is self.plan.last):
            self._spare.append(name)
        return wanted

    def _say(self, text: str) -> None:
        self.progress(BuildEvent(kind="output", text=text))


def store(api: Any, cache: Cache, *, plan: ImagePlan, progress: Progress) -> None:
    """Sends the images of a plan to the cache, those that the engine has and the cache has not."""
    for step in plan.steps:
        if inspected(api, step.reference) is None:
            continue
        name = f"{cache.repository}:{tag_of(step)}"
        try:
            if _is_missing(name):
                _refuse_passwords(api, step)
                progress(BuildEvent(kind="image", text=f"{step.what}, to the cache as {name}"))
                _push(api, step, name, progress=progress)
        except HvdcloudError as error:
            progress(BuildEvent(kind="warning", text=f"{step.what} is not in the cache: {error.message}; {error.hint}"))


def _parsed(text: str, *, option: str) -> Cache:
    path, tag = _split(text)
    if "@" in text or not _PATH.fullmatch(path) or (tag and not _TAG.fullmatch(tag)):
        message = f"{option} {text!r} is not a repository"
        raise UsageError(message, hint=f"{option} HOST/PATH, e.g. us-central1-docker.pkg.dev/PROJECT/hvdcloud/cache")
    return Cache(repository=path, tag=tag)


def tag_of(step: Step) -> str:
    """What a step's image is called at a registry: `builder-ROW-HASH`, or HASH alone if it is a project's."""
    path, tag = _split(step.reference)
    kind = path.removeprefix("hvdcloud/")
    return tag if kind == "project" else f"{kind}-{tag}"


def _split(reference: str) -> tuple[str, str]:
    from docker.utils import parse_repository_tag

    path, tag = parse_repository_tag(reference)
    return path, tag or ""


def _pull(api: Any, name: str, *, progress: Progress) -> None:
    from docker.errors import APIError, DockerException

    path, tag = _split(name)
    credentials = registry.auth_config(registry.host_of(name))
    try:
        items = api.pull(path, tag=tag, stream=True, decode=True, auth_config=credentials)
        engine_stream.follow_pull(items, reference=name, progress=progress)
    except APIError as error:
        raise ImageError(f"{name}: {error.explanation or error}", hint="hvdcloud build tries again") from error
    except DockerException as error:
        raise ImageError(f"{name}: {error}", hint=f"docker login {registry.host_of(name)}") from error


def _is_missing(name: str) -> bool:
    from requests.exceptions import RequestException

    try:
        return registry.digest_at_registry(name) is None
    except RequestException as error:
        host = registry.host_of(name)
        raise ImageError(f"{host} does not answer: {error}", hint=f"check that {host} is up") from error


def _push(api: Any, step: Step, name: str, *, progress: Progress) -> None:
    was_here = inspected(api, name) is not None
    told: set[str] = set()

    def tell_once(event: BuildEvent) -> None:
        if event.text not in told:
            told.add(event.text)
            progress(event)

    try:
        push(step.reference, name, progress=tell_once)
    finally:
        if not was_here:
            _remove(api, name)


def _remove(api: Any, name: str) -> None:
    """Removes a name; the image stays if it has another."""
    from docker.errors import APIError

    # Another process may have removed it, or be using it.
    with contextlib.suppress(APIError):
        api.remove_image(name)


def _refuse_passwords(api: Any, step: Step) -> None:
    """An image's history has its build arguments, PIP_INDEX_URL among them."""
    if any(_PASSWORD_IN_URL.search(layer.get("CreatedBy") or "") for layer in api.history(step.reference)):
        raise ImageError(
            "its history holds the password of a package index",
            hint="name an index without one in PIP_INDEX_URL and PIP_EXTRA_INDEX_URL to have it cached",
        )
