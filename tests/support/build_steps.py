"""A step of an image's build whose content a test chooses."""

from __future__ import annotations

from typing import Any

from hvdcloud.image.plan.context import Context, Entry, Step


def build_step(*entries: Entry, dockerfile: str = "dockerfiles/small.Dockerfile", **more: Any) -> Step:
    return Step(
        reference="hvdcloud/t:1", what="a small image", context=Context(hashed=entries), dockerfile=dockerfile, **more
    )
