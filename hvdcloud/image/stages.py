"""What the long instructions of our Dockerfiles do, in words; a user's own Dockerfile speaks for itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from hvdcloud.image.engine_stream import BuildEvent, Progress

if TYPE_CHECKING:
    from hvdcloud.image.plan.steps import Step

_STACKS = (
    ("COPY wheels/", "copying local wheels"),
    ("RUN pip --python /opt/hvdcloud/venv", "installing py-spy"),
    ("COPY --from=stacks", "copying py-spy"),
)
_STAGES: Mapping[str, Sequence[tuple[str, str]]] = {
    "builder.Dockerfile": (
        ("RUN apt-get update", "installing compilers"),
        ("COPY wheels/", "copying local wheels"),
        ("RUN python3 -m venv /opt/tools", "installing build tools"),
        ("RUN /opt/build/framework.sh", "installing {FRAMEWORK_PACKAGE}"),
        ("COPY --from=donor", "copying the CUDA toolkit"),
        ("RUN [ -z", "preparing the CUDA toolkit"),
        ("RUN set -eu; site=", "compiling Horovod, once, about 4 min"),
        ("COPY --from=horovod", "copying Horovod"),
        ("RUN echo /opt/horovod", "installing the node program's libraries"),
    ),
    "base.Dockerfile": (
        ("RUN apt-get update", "installing Open MPI and sshd"),
        ("COPY --from=builder", "copying {COPIED}"),
        *_STACKS,
        ("RUN HOME=", "checking that Horovod works"),
        ("RUN /opt/hvdcloud/venv/bin/python -m compileall", "compiling the node program"),
    ),
    "project.Dockerfile": (
        ("COPY wheels/", "copying local wheels"),
        ("RUN mkdir -p /opt/requirements", "installing {REQUIREMENTS}"),
        ("COPY --from=requirements", "copying what {REQUIREMENTS} has installed"),
    ),
    "own-builder.Dockerfile": (
        ("COPY wheels/", "copying local wheels"),
        ("RUN /opt/own/prepare.sh", "preparing a node; Horovod, if the image has none, is compiled once, about 4 min"),
    ),
    "own.Dockerfile": (
        ("COPY --from=builder", "copying {COPIED}"),
        *_STACKS,
        ("RUN /opt/hvdcloud/python", "installing Open MPI and sshd, if the image has none"),
        ("RUN /opt/hvdcloud/venv/bin/python -m compileall", "checking that the image can be a node"),
    ),
    "checked.Dockerfile": (("RUN python=", "checking that the image is still a node"),),
}
"""By Dockerfile: how an instruction begins → what it does."""
_COPIED = {"/opt/venv": "the framework", "/opt/horovod": "Horovod", "/opt/hvdcloud": "the node program's libraries"}


def with_stages(step: Step, progress: Progress) -> Progress:
    """The same callback; it gets every event of a step's build with the stage that the build is at."""

    def told(event: BuildEvent) -> None:
        progress(replace(event, stage=stage_of(step, event.text)) if event.kind == "step" else event)

    return told


def stage_of(step: Step, instruction: str) -> str:
    """What an instruction does, in words; "" if it is one of ours that takes no time."""
    path = PurePosixPath(step.dockerfile)
    if path.parts[:-1] != ("dockerfiles",) or path.name not in _STAGES:
        return instruction
    copied = next((what for path, what in _COPIED.items() if f" {path} " in instruction), "")
    values = {name: value.replace("==", " ") for name, value in step.arguments.items()}
    if instruction.startswith("FROM "):
        return "fetching the image that it starts from"
    words = (stage for begin, stage in _STAGES[path.name] if instruction.startswith(begin))
    return next(words, "").format_map({**values, "COPIED": copied})
