"""What is built for `image.base` and `image.dockerfile`, and what is refused before anything is; without an engine."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from hvdcloud.config.model import ImageConfig
from hvdcloud.errors import UsageError
from hvdcloud.image.plan import custom_base, requirements
from hvdcloud.image.plan.sources import Sources
from hvdcloud.image.plan.steps import ImagePlan, Step, plan_image
from tests.support.small_image import packed

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


def sent(step: Step) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(packed(step.context))) as archive:
        return {member.name: member for member in archive.getmembers()}


def dockerfile(folder: Path, *lines: str, name: str = "Dockerfile") -> None:
    (folder / name).write_text("\n".join(["ARG BASE", "FROM ${BASE}", *lines]) + "\n")


# --- image.base -----------------------------------------------------------------------------------------------------


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


def test_a_digest_needs_no_engine_and_a_tag_says_how_to_get_one(tmp_path: Path) -> None:
    image_config = ImageConfig(base=PINNED, requirements=None)
    known = plan_image(image_config, project_dir=tmp_path)
    assert known.steps[0].arguments["OWN"] == PINNED
    with pytest.raises(UsageError, match="a tag: only an engine") as raised:
        plan_image(ImageConfig(base="theirs:1", requirements=None), project_dir=tmp_path)
    assert "docker pull theirs:1" in raised.value.hint


def test_the_controller_that_runs_are_to_use_has_to_work_in_it(tmp_path: Path) -> None:
    base = custom_base.Base(reference="theirs:1", identity="sha256:a")
    gloo, mpi = (planned(tmp_path, base=base, needs=custom_base.Needs(controller=name)) for name in ("gloo", "mpi"))
    assert (gloo.last.arguments["CONTROLLER"], mpi.last.arguments["CONTROLLER"]) == ("gloo", "mpi")
    assert gloo.reference != mpi.reference
    assert gloo.steps[0].reference == mpi.steps[0].reference, "what is compiled is the same"
    # Ours work with either.
    assert len({planned(tmp_path, needs=custom_base.Needs(controller=name)).reference for name in ("gloo", "mpi")}) == 1


def test_the_gpus_of_the_nodes_are_what_it_has_to_have_code_for(tmp_path: Path) -> None:
    base = custom_base.Base(reference="theirs:1", identity="sha256:a")
    known, unknown = (planned(tmp_path, base=base, needs=custom_base.Needs(capability=name)) for name in ("7.5", ""))
    assert (known.last.arguments["CAPABILITY"], unknown.last.arguments["CAPABILITY"]) == ("7.5", "")
    assert known.steps[0].reference == unknown.steps[0].reference


def test_local_wheels_of_any_python_are_sent_but_no_framework(tmp_path: Path) -> None:
    folder = tmp_path / "wheels"
    folder.mkdir()
    mine = "mine-1.0-cp312-cp312-manylinux_2_28_x86_64.whl"
    ours = "cffi-2.1.1-cp310-cp310-manylinux_2_28_x86_64.whl"
    torch = "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"
    # prepare.sh refuses an image with musl.
    musl = mine.replace("manylinux_2_28", "musllinux_1_2")
    for name in (mine, ours, torch, musl, mine.replace("x86_64", "aarch64")):
        (folder / name).write_bytes(b"wheel")
    (tmp_path / "requirements.txt").write_text("mine\n")
    sources = Sources(find_links=(folder,))
    base = custom_base.Base(reference="theirs:1", identity="sha256:a")
    builder = custom_base.builder_context(base, sources, framework="torch", device="cpu")
    wanted = requirements.read(tmp_path, "requirements.txt")
    assert wanted is not None
    project = custom_base.project_context(sources, requirements=wanted, node="x")
    assert [entry.path for entry in builder.unhashed if entry.path.endswith(".whl")] == [f"wheels/{ours}"]
    assert [entry.path for entry in project.hashed if entry.path.endswith(".whl")] == [f"wheels/{mine}"]


# --- image.dockerfile -----------------------------------------------------------------------------------------------


def test_the_users_dockerfile_begins_with_the_image_with_the_requirements_and_is_checked_last(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("idna\n")
    dockerfile(tmp_path, "RUN true", name="node.Dockerfile")
    plan = planned(tmp_path, dockerfile="node.Dockerfile")
    _, _, project, user, checked = plan.steps
    assert user.arguments == {"BASE": project.reference}
    assert (user.dockerfile, user.what) == ("node.Dockerfile", "image.dockerfile node.Dockerfile")
    assert checked.arguments == {"IMAGE": user.reference, "CONTROLLERS": "gloo mpi"}
    assert plan.reference == checked.reference


def test_the_folder_is_sent_less_what_dockerignore_excludes(tmp_path: Path) -> None:
    for name in ("data/a.txt", "data/deep/b.txt", "data/cache/c.txt", "train.py", "quoted dir/d.txt", ".git/HEAD"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "data" / "link").symlink_to("a.txt")
    (tmp_path / "data" / "empty").mkdir()
    (tmp_path / "data" / "deep" / "b.txt").chmod(0o755)
    (tmp_path / ".dockerignore").write_text("# no caches\n**/cache\n")
    dockerfile(tmp_path, "COPY data/ /data/")
    before = planned(tmp_path, dockerfile="Dockerfile")
    members = sent(before.steps[-2])
    assert sorted(name for name, member in members.items() if not member.isdir()) == [
        ".dockerignore",
        "Dockerfile",
        "data/a.txt",
        "data/deep/b.txt",
        "data/link",
        "quoted dir/d.txt",
        "train.py",
    ]
    assert members["data/empty"].isdir()
    assert (members["data/link"].issym(), members["data/link"].linkname) == (True, "a.txt")
    assert (members["data/deep/b.txt"].mode, members["data/a.txt"].mode) == (0o755, 0o644)
    (tmp_path / "data" / "cache" / "c.txt").write_text("new")
    assert planned(tmp_path, dockerfile="Dockerfile").reference == before.reference
    (tmp_path / "data" / "a.txt").write_text("new")
    assert planned(tmp_path, dockerfile="Dockerfile").reference != before.reference


@pytest.mark.parametrize("text", ["ARG BASE\nFROM ${BASE}\n", "FROM ubuntu:24.04\n"])
def test_what_the_engine_made_of_it_is_what_counts_once_it_is_known(tmp_path: Path, text: str) -> None:
    (tmp_path / "Dockerfile").write_text(text)
    (tmp_path / "train.py").write_text("old")
    config = ImageConfig(dockerfile="Dockerfile", requirements=None)
    before = plan_image(config, project_dir=tmp_path, own_image="sha256:a")
    (tmp_path / "train.py").write_text("new")
    after = plan_image(config, project_dir=tmp_path, own_image="sha256:a")
    assert before.own_dockerfile
    assert after.own_dockerfile
    assert before.own_dockerfile.reference != after.own_dockerfile.reference
    assert before.reference == after.reference
    assert plan_image(config, project_dir=tmp_path, own_image="sha256:b").reference != before.reference


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
    _, base, user, checked = planned(tmp_path, dockerfile="Dockerfile").steps
    assert (user.dockerfile, user.arguments) == ("Dockerfile", {"BASE": base.reference})
    assert user.needs == (base.reference,)
    assert checked.needs == (user.reference,)


def test_what_another_dockerfile_makes_is_taken_like_image_base(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("idna\n")
    (tmp_path / "Dockerfile").write_text("FROM ubuntu:24.04\nRUN true\n")
    user, builder, node, project = planned(tmp_path, dockerfile="Dockerfile").steps
    assert (user.arguments, user.needs) == ({}, ())
    assert builder.arguments["OWN"] == node.arguments["OWN"] == user.reference
    assert builder.needs == (user.reference,)
    assert {builder.what, node.what} == {"image.dockerfile Dockerfile"}
    assert project.needs == (builder.reference, node.reference)


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
