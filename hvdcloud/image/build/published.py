"""Images that are the same for everybody, built and published by .github/workflows/base-images.yml.

dockerfiles/published.txt has them, by the reference of the step that would build them, which stands for the recipe, and
by the digest that they have at the registry. What it does not name is never asked for.
"""

from __future__ import annotations

import os
from typing import Any

from hvdcloud.errors import ImageError
from hvdcloud.image.engine_reports import Progress, inspected
from hvdcloud.image.plan.context import dockerfiles
from hvdcloud.image.publish import registry
from hvdcloud.image.publish.transfer import pull

FILE = "published.txt"
REPOSITORY = "ghcr.io/hvdcloud/images"
PUBLISHED_VARIABLE = "HVDCLOUD_PUBLISHED"
"""A mirror of the repository, `HOST/PATH`; 0: nothing is pulled."""
RECIPE_LABEL = "hvdcloud-image-recipe"
"""The reference of the step that has built the image."""


def parse(text: str) -> dict[str, str]:
    """Reference of a step → digest of its image: lines `hvdcloud/base:ROW-HASH sha256:…`, and comments."""
    lines = (line.partition("#")[0].split() for line in text.splitlines())
    return {words[0]: words[1] for words in lines if words}


def find(reference: str) -> str:
    """REPOSITORY@DIGEST of a step's image; "": it is not published, or is not wanted.

    Raises UsageError: HVDCLOUD_PUBLISHED is no repository.
    """
    repository = os.environ.get(PUBLISHED_VARIABLE) or REPOSITORY
    if repository == "0":
        return ""
    registry.check_repository(repository, of=PUBLISHED_VARIABLE)
    digest = parse((dockerfiles() / FILE).read_text(encoding="utf-8")).get(reference)
    return registry.pinned(repository, digest) if digest else ""


def fetch(api: Any, name: str, reference: str, *, progress: Progress) -> None:
    """Pulls the image of a step, which then has the step's reference as its only name.

    Raises:
        ImageError: it can't be pulled, or is the image of another recipe.
        CredentialsError: the docker configuration's credentials can't be read.
    """
    pull(api, name, progress=progress)
    try:
        found = ((inspected(api, name) or {}).get("Config") or {}).get("Labels") or {}
        if found.get(RECIPE_LABEL) != reference:
            message = f"{name} is {found.get(RECIPE_LABEL) or 'no published image'}, not {reference}"
            raise ImageError(message, hint=f"correct dockerfiles/{FILE}")
        api.tag(name, *reference.split(":"))
    finally:
        # A name of its own would keep the image when the step's is removed.
        api.remove_image(name)
