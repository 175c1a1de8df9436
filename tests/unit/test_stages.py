"""A build's stages in words."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from hvdcloud.config.model import ImageConfig
from hvdcloud.image.plan import custom_base
from hvdcloud.image.plan.steps import Step, plan_image
from hvdcloud.image.stages import stage_of
from tests.support.build_steps import build_step

DIGEST = "sha256:" + "1" * 64


def every_step(folder: Path) -> dict[str, Step]:
    """A step of each of our Dockerfiles, by the Dockerfile's name."""
    (folder / "requirements.txt").write_text("idna\n")
    (folder / "Dockerfile").write_text("ARG BASE\nFROM ${BASE}\n")
    base = custom_base.Base(reference="theirs:1", identity=DIGEST)
    plans = [
        plan_image(ImageConfig(dockerfile="Dockerfile"), project_dir=folder),
        plan_image(ImageConfig(base=base.reference), project_dir=folder, base=base),
    ]
    return {step.dockerfile: step for plan in plans for step in plan.steps}


def instructions(step: Step) -> list[str]:
    """As a builder names them: one line each, without comments."""
    [entry] = (entry for entry in step.context.hashed if entry.path == step.dockerfile)
    assert entry.source is not None
    lines = [line for line in entry.source.read_text().splitlines() if not line.lstrip().startswith("#")]
    return ["".join(found) for found in re.findall(r"^\S(?:.*\\\n)*.*$", "\n".join(lines), re.MULTILINE)]


def test_whatever_takes_time_in_our_dockerfiles_has_words(tmp_path: Path) -> None:
    steps = every_step(tmp_path)
    assert len(steps) == 7
    long = 0
    for path, step in steps.items():
        for instruction in instructions(step) if path != "Dockerfile" else ():
            if re.match(r"RUN|FROM|COPY --from|COPY wheels", instruction):
                long += 1
                said = stage_of(step, " ".join(instruction.replace("\\\n", " ").split()))
                assert said, (path, instruction)
                assert not re.search(r"[{}$=/]|--|RUN|COPY", said), said
    assert long > 25


@pytest.mark.parametrize(
    ("dockerfile", "instruction", "said"),
    [
        ("builder", 'RUN /opt/build/framework.sh "$FRAMEWORK_PACKAGE"', "installing torch 2.13.0+cpu"),
        ("builder", "RUN set -eu; site=$(echo", "compiling Horovod, once, about 4 min"),
        ("builder", "ARG FRAMEWORK", ""),
        ("base", "COPY --from=builder /opt/venv /opt/venv", "copying the framework"),
        ("base", "COPY --from=builder /opt/horovod /opt/venv", "copying Horovod"),
        ("project", "RUN mkdir -p /opt/requirements && pip", "installing requirements.txt"),
        ("project", "FROM hvdcloud/builder:1 AS requirements", "fetching the image that it starts from"),
    ],
)
def test_what_an_instruction_does(tmp_path: Path, dockerfile: str, instruction: str, said: str) -> None:
    step = every_step(tmp_path)[f"dockerfiles/{dockerfile}.Dockerfile"]
    if dockerfile == "builder":
        step = replace(step, arguments={**step.arguments, "FRAMEWORK_PACKAGE": "torch==2.13.0+cpu"})
    assert stage_of(step, instruction) == said


def test_a_users_own_dockerfile_is_shown_as_it_is(tmp_path: Path) -> None:
    own = every_step(tmp_path)["Dockerfile"]
    assert stage_of(own, "RUN pip install x") == "RUN pip install x"
    assert stage_of(replace(build_step(), dockerfile="dockerfiles/mine.Dockerfile"), "ENV A=1") == "ENV A=1"
