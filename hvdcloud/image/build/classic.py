"""The engine's classic builder, which every engine has: one step of a plan through docker-py."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Any

from hvdcloud.errors import ImageError
from hvdcloud.image import engine_stream
from hvdcloud.image.engine_stream import Progress
from hvdcloud.image.plan.sources import download_arguments
from hvdcloud.image.plan.steps import Step

# Compiling Horovod and unpacking a framework say nothing for minutes.
SILENCE_SECONDS = 1800


@dataclass(frozen=True, slots=True)
class ClassicBuilder:
    """Builds images one instruction after the other, each a container of its own."""

    api: Any
    """docker-py's low-level client; not all of its methods have types."""
    architecture: str = ""
    """That images are for: `amd64`; "": the engine's own."""

    def build(self, step: Step, *, progress: Progress) -> str:
        """Builds a step's image; returns its id.

        Raises:
            ImageError: an instruction failed; `details` has its last lines.
        """
        from docker.errors import APIError

        # The throw-away stage first, to know which image has to be thrown away.
        stage = self._run(step, target=step.throw_away, tag=None, progress=progress) if step.throw_away else None
        image_id = self._run(step, target=step.target, tag=step.reference, progress=progress)
        # It only costs space: an engine that keeps it, for any reason, has built the image all the same.
        with contextlib.suppress(APIError):
            if stage is not None:
                self.api.remove_image(stage)
        return image_id

    def _run(self, step: Step, *, target: str, tag: str | None, progress: Progress) -> str:
        from docker.errors import APIError

        try:
            items = self.api.build(
                fileobj=step.context.stream(),
                custom_context=True,
                dockerfile=step.dockerfile,
                tag=tag,
                target=target or None,
                buildargs={**download_arguments(os.environ), **step.arguments},
                labels=dict(step.labels) if tag else {},
                use_config_proxy=True,
                platform=f"linux/{self.architecture}" if self.architecture else None,
                rm=True,
                forcerm=True,
                timeout=SILENCE_SECONDS,
                decode=True,
            )
            with contextlib.closing(items):
                return engine_stream.follow_build(items, image=step.what, pip_hint=step.pip_hint, progress=progress)
        except APIError as error:
            said = str(error.explanation or error)
            raise engine_stream.disk_full(said, image=step.what) or ImageError(
                f"the Docker engine refused to build {step.what}: {said}",
                hint="docker info shows whether the engine is healthy; then try again",
            ) from error
