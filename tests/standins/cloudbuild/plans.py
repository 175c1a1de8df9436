"""Plans of three images that stand on each other as the real ones do, and take no time to build."""

from __future__ import annotations

import os
from collections.abc import Mapping

from hvdcloud.image.plan import versions
from hvdcloud.image.plan.context import Context, Entry
from hvdcloud.image.plan.steps import ImagePlan, Step

PIP_HINT = "correct image.requirements"
_BUILDER = "FROM scratch AS builder\nCOPY compiled /compiled\n"
_BASE = "ARG BUILDER\nFROM ${BUILDER} AS builder\nFROM scratch\nCOPY --from=builder /compiled /compiled\n"
_PROJECT = "ARG BASE\nFROM ${BASE}\nCOPY requirements.txt /requirements.txt\n"


def tiny_plan(
    tag: str, *, requirements: str = "nothing", project: str = _PROJECT, builder: str = _BUILDER
) -> ImagePlan:
    """A plan.

    Args:
        tag: of all images.
        requirements: content of the project's file.
        project, builder: Dockerfiles.
    """
    # Each process of the tests builds layers of its own: what one removes from the engine, another may be building on.
    compiled = {"compiled": f"Horovod for process {os.getpid()}"}
    compilers = _step("builder", tag, builder, compiled, target="builder")
    base = _step(
        "base",
        tag,
        _BASE,
        {},
        arguments={"BUILDER": compilers.reference},
        needs=(compilers.reference,),
        what="the base",
    )
    last = _step(
        "project",
        tag,
        project,
        {"requirements.txt": requirements, "ca-bundle.crt": "of this machine's network"},
        arguments={"BASE": base.reference, "REQUIREMENTS": "costs $5.txt"},
        needs=(compilers.reference, base.reference),
        labels={"hvdcloud-image": tag},
        what="the layer for requirements.txt",
    )
    return ImagePlan(
        reference=f"hvdcloud/project:{tag}", digest=tag, row=versions.ROWS[0], steps=(compilers, base, last)
    )


def _step(
    kind: str,
    tag: str,
    dockerfile: str,
    files: Mapping[str, str],
    *,
    what: str = "the compilers",
    target: str = "",
    arguments: Mapping[str, str] | None = None,
    needs: tuple[str, ...] = (),
    labels: Mapping[str, str] | None = None,
) -> Step:
    entries = {"dockerfiles/Dockerfile": dockerfile, **files}
    return Step(
        reference=f"hvdcloud/{kind}:{tag}",
        what=what,
        context=Context(hashed=tuple(Entry(path=path, content=text.encode()) for path, text in entries.items())),
        dockerfile="dockerfiles/Dockerfile",
        target=target,
        arguments=arguments or {},
        labels=labels or {},
        pip_hint=PIP_HINT,
        needs=needs,
    )
