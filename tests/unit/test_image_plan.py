"""What is built for `image.base` and `image.dockerfile`, and what is refused before anything is; without an engine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hvdcloud.config.model import ImageConfig
from hvdcloud.errors import UsageError
from hvdcloud.image.plan import custom_base
from hvdcloud.image.plan.steps import ImagePlan, plan_image
from hvdcloud.image.plan.versions import ROWS, Row

DIGEST = "sha256:" + "1" * 64
PINNED = f"nvcr.io/nvidia/pytorch@{DIGEST}"


def planned(
    folder: Path, *, base: custom_base.Base | None = None, needs: custom_base.Needs | None = None, **config: str
) -> ImagePlan:
    """The plan of a project; without a requirements.txt there is none to install."""
    file = "requirements.txt" if (folder / "requirements.txt").exists() else None
    if base is not None:
        config["base"] = base.reference
    image_config = ImageConfig(**{"requirements": file, **config})
    return plan_image(image_config, project_dir=folder, base=base, needs=needs)


def dockerfile(folder: Path, *lines: str, name: str = "Dockerfile") -> None:
    (folder / name).write_text("\n".join(["ARG BASE", "FROM ${BASE}", *lines]) + "\n")


def test_a_base_is_built_on_twice_and_requirements_go_on_top(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("idna\n")
    builder, node, project = planned(tmp_path, base=custom_base.Base(reference="theirs:1", identity="sha256:a")).steps
    assert builder.arguments["OWN"] == node.arguments["OWN"] == "theirs:1"
    assert node.arguments["BUILDER"] == project.arguments["BUILDER"] == builder.reference
    assert project.arguments["BASE"] == node.reference
    assert (node.needs, project.needs) == ((builder.reference,), (builder.reference, node.reference))
    assert builder.reference.startswith("hvdcloud/own-builder:torch-cpu-")
    assert builder.what == node.what == "image.base theirs:1"


def test_what_is_in_the_base_decides_the_name_and_not_how_it_is_called(tmp_path: Path) -> None:
    names = {
        planned(tmp_path, base=custom_base.Base(reference=reference, identity=identity)).reference
        for reference, identity in [("theirs:1", "sha256:a"), ("theirs:1", "sha256:b"), ("also:1", "sha256:a")]
    }
    assert len(names) == 2


def test_the_users_dockerfile_begins_with_the_image_with_the_requirements_and_is_checked_last(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("idna\n")
    dockerfile(tmp_path, "RUN true", name="node.Dockerfile")
    plan = planned(tmp_path, dockerfile="node.Dockerfile")
    _, _, _, project, user, checked = plan.steps
    assert user.arguments == {"BASE": project.reference}
    assert (user.dockerfile, user.what) == ("node.Dockerfile", "image.dockerfile node.Dockerfile")
    assert checked.arguments == {"IMAGE": user.reference, "PROOF": "gloo mpi"}
    assert plan.reference == checked.reference
    assert plan.own_dockerfile == user
    assert planned(tmp_path).own_dockerfile is None


@pytest.mark.parametrize(
    "text",
    [
        "ARG BASE\nFROM $BASE\n",
        'ARG BASE=ubuntu\nFROM --platform=linux/amd64 "${BASE}" AS last\nRUN true\n',
        "# syntax=docker/dockerfile:1\narg BASE\nFROM debian AS x\nCMD x\nFROM ${BASE} as ours\nfrom ours\n",
        "# syntax=docker/dockerfile:1\n# escape=`\nARG BASE\nFROM ${BASE}\nRUN a `\n  b\n",
        'ARG BASE\nFROM ${BASE}\nRUN python -c "print(1<<20)"\nCOPY\t. /src\nENTRYPOINT ["x"]\n',
    ],
)
def test_a_dockerfile_that_mentions_our_image_is_built_on_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "Dockerfile").write_text(text)
    _, _, node, user, checked = planned(tmp_path, dockerfile="Dockerfile").steps
    assert (user.dockerfile, user.arguments) == ("Dockerfile", {"BASE": node.reference})
    assert user.needs == (node.reference,)
    assert checked.needs == (user.reference,)


@pytest.mark.parametrize(("key", "value"), [("base", PINNED), ("version", "2.13.0")])
def test_a_key_that_names_an_image_which_the_dockerfile_does_not_begin_with_is_refused(
    tmp_path: Path, key: str, value: str
) -> None:
    (tmp_path / "Dockerfile").write_text("FROM ubuntu:24.04\n")
    with pytest.raises(UsageError, match=rf"image\.{key} is .*, but image\.dockerfile Dockerfile does not") as raised:
        plan_image(ImageConfig(dockerfile="Dockerfile", requirements=None, **{key: value}), project_dir=tmp_path)
    assert "ARG BASE and FROM ${BASE}" in raised.value.hint


def test_a_dockerfile_that_is_missing_or_elsewhere_is_named_with_its_key(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    with pytest.raises(UsageError, match=r"Dockerfile does not exist, but image\.dockerfile names it"):
        planned(project, dockerfile="Dockerfile")
    dockerfile(tmp_path)
    with pytest.raises(UsageError, match="is not below the project's folder"):
        planned(project, dockerfile="../Dockerfile")


@pytest.mark.parametrize("row", [*ROWS, *(row.without_horovod() for row in ROWS)], ids=lambda row: row.label)
def test_every_argument_is_one_that_its_dockerfile_declares(row: Row, tmp_path: Path) -> None:
    needs = custom_base.Needs(launcher="horovod" if row.horovod else "each")
    plan = planned(tmp_path, needs=needs, framework=row.framework, device=row.device, version=row.version)
    for step in plan.steps:
        [text] = (entry.content or b"" for entry in step.context.hashed if entry.path == step.dockerfile)
        assert step.arguments.keys() <= set(re.findall(r"^ARG (\w+)", text.decode(), re.MULTILINE))
