"""Images that are not ours, and Dockerfiles on top of ours: they become nodes, or are refused when they are built."""

from __future__ import annotations

import contextlib
import io
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from docker.errors import APIError, ImageNotFound

from hvdcloud.config.model import ImageConfig, Launcher
from hvdcloud.errors import ExitCode, ImageError
from hvdcloud.image.build.builder import BuildResult, Options, build, find_plan
from hvdcloud.image.engine_reports import BuildEvent, ignore
from hvdcloud.image.plan import custom_base
from hvdcloud.image.plan.steps import ImagePlan, plan_image
from tests.support.harness import brought_up, project_in

pytestmark = pytest.mark.engine

Make = Callable[..., str]
Build = Callable[..., BuildResult]

# Python, torch and Horovod, and nothing of a node: no sshd, no Open MPI programs, no pip, root locked, another user.
THEIRS = r"""
RUN apt-get purge -y openssh-server openssh-client iproute2 openmpi-bin > /dev/null \
    && rm -rf /opt/hvdcloud /etc/hvdcloud /usr/local/bin/hvdcloud-node /workspace /var/lib/hvdcloud \
        /opt/venv/lib/python3.11/site-packages/hvdcloud_requirements.* \
    && useradd alice && passwd -l root
ENV FLAVOUR=theirs PYTHONPATH=/srv/lib PATH=/opt/venv/bin:/usr/bin:/bin
ENTRYPOINT ["/bin/false"]
CMD ["nothing"]
HEALTHCHECK CMD /bin/false
WORKDIR /srv
SHELL ["/bin/false"]
USER alice
"""
BARE = "debian:bookworm-slim"
OLD_PYTHON = "RUN printf '#!/bin/sh\\n[ \"$1\" != --version ] || { echo Python 3.8.20; exit 0; }\\nexit 1\\n'"
OLD_PYTHON += " > /usr/bin/python3 && chmod +x /usr/bin/python3"
REDUCES = """
import os
import horovod.torch as hvd
import torch

hvd.init()
total = hvd.allreduce(torch.tensor([float(hvd.rank())]), op=hvd.Sum).item()
found = f"{os.environ['FLAVOUR']} {os.environ['PYTHONPATH']}"
print(f"rank {hvd.rank()} of {hvd.size()} sums {total:.0f} {found}", flush=True)
"""


def remove(engine: Any, references: list[str]) -> None:
    """Removes images by name or id, and what failed builds have left on top of them; what has other names stays.

    What `theirs` becomes a node with stays too, for the next session, as what our own images are made of does.
    """
    mine = {reference for reference in references if reference.startswith("sha256:")}
    names = dict.fromkeys(reference for reference in references if reference not in mine)
    for name in names:
        if name.startswith(("hvdcloud/own-builder:", "hvdcloud/own:")):
            continue
        with contextlib.suppress(ImageNotFound):
            mine.add(engine.images.get(name).id)
            engine.images.remove(name, force=True, noprune=True)
    # Once: an engine with many images takes seconds to list them.
    images = engine.api.images(all=True)
    nameless = [each for each in images if "<none>" in (each["RepoTags"] or ["<none>"])[0]]
    mine &= {each["Id"] for each in nameless}
    before = 0
    while before != len(mine):
        before = len(mine)
        mine |= {each["Id"] for each in nameless if each["ParentId"] in mine}
    # An image goes after those that begin with it.
    parents = {each["Id"]: each["ParentId"] for each in images}
    mine &= parents.keys()
    while last := mine - set(parents.values()):
        for image in last:
            try:
                engine.images.remove(image, force=True, noprune=True)
            except APIError as error:
                # Another process has removed it meanwhile, or its build begins with it.
                if error.status_code not in (404, 409):
                    raise
            del parents[image]
        mine -= last
    # What is left is a part of images with other names.


@pytest.fixture(scope="module")
def make(engine: Any) -> Iterator[Make]:
    """Builds an image of a Dockerfile's lines; all but those to keep are removed after the tests."""
    made: list[str] = []

    def call(base: str, lines: str = "", *, tag: str, keep: bool = False) -> str:
        name = f"hvdcloud-tests/own:{tag}"
        # Without an instruction of its own it would be the base itself.
        dockerfile = f"FROM {base}\nLABEL hvdcloud-tests={tag}\n{lines}\n".encode()
        built, _ = engine.images.build(fileobj=io.BytesIO(dockerfile), tag=name, rm=True, forcerm=True)
        made.extend([] if keep else [name, built.id])
        return name

    yield call
    remove(engine, made)


@pytest.fixture(scope="module")
def theirs(make: Make, engine: Any, image: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image that has Python, torch and Horovod, and knows nothing of nodes.

    Without the node program, which changes: Horovod is compiled again for each new base.
    """
    ours = build(ImageConfig(requirements=None), project_dir=tmp_path_factory.mktemp("ours"))
    (base,) = (step.reference for step in ours.plan.steps if step.reference.startswith("hvdcloud/base:"))
    return make(base, THEIRS, tag="theirs", keep=True)


def plan_of(engine: Any, image_config: ImageConfig, folder: Path, needs: custom_base.Needs) -> ImagePlan:
    base = custom_base.find(engine.api, image_config.base) if image_config.base else None
    return plan_image(image_config, project_dir=folder, base=base, needs=needs)


@pytest.fixture(scope="module")
def remover(engine: Any) -> Iterator[list[str]]:
    """References of images that are removed after the tests."""
    references: list[str] = []
    yield references
    remove(engine, references)


@pytest.fixture
def built(tmp_path: Path, engine: Any, image: str, remover: list[str]) -> Build:
    """Builds an image for a project in `tmp_path`, of which nothing is left after the tests."""
    return partial(build_in, tmp_path, engine, remover)


def build_in(
    folder: Path,
    engine: Any,
    remover: list[str],
    *,
    progress: Callable[[BuildEvent], None] = ignore,
    launcher: Launcher = "horovod",
    **config: Any,
) -> BuildResult:
    image_config, needs = ImageConfig(**{"requirements": None, **config}), custom_base.Needs(launcher=launcher)
    # Before the build, so that what a failed one leaves is removed too; what our own image is made of stays.
    plan = plan_of(engine, image_config, folder, needs)
    ours = plan_image(ImageConfig(requirements=image_config.requirements), project_dir=folder, needs=needs)
    remover.extend({step.reference for step in plan.steps} - {step.reference for step in ours.steps})
    remover.append(plan.reference)
    return build(image_config, project_dir=folder, options=Options(progress=progress), needs=needs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What a Dockerfile makes of `theirs`, and the node that was built of that.

    Attributes:
        base: the user's image.
    """

    folder: Path
    base: str
    node: BuildResult


@pytest.fixture(scope="module")
def made(engine: Any, theirs: str, remover: list[str], tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Built once: as `image.base`, what the Dockerfile makes is the same image."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "Dockerfile").write_text(f"FROM {theirs}\nCOPY --chown=alice mine.txt /srv/\n")
    (folder / "mine.txt").write_text("mine")
    node = build_in(folder, engine, remover, dockerfile="Dockerfile")
    own = node.plan.own_dockerfile
    assert own
    return Made(folder=folder, base=own.reference, node=node)


def inside(engine: Any, image: str, script: str) -> str:
    """What a shell in the image prints."""
    output: bytes = engine.containers.run(image, ["-c", script], entrypoint="sh", remove=True)
    return output.decode().strip()


def test_an_image_with_horovod_becomes_a_node_and_gets_nothing_else(engine: Any, made: Made) -> None:
    result = made.node
    before, after = (engine.images.get(name).attrs for name in (made.base, result.reference))
    assert after["RootFS"]["Layers"][: len(before["RootFS"]["Layers"])] == before["RootFS"]["Layers"]
    config = after["Config"]
    assert config["Entrypoint"] == ["/usr/local/bin/hvdcloud-node", "entrypoint"]
    assert (config["Cmd"], config["User"], config["WorkingDir"]) == (None, "root", "/workspace")
    assert config["Healthcheck"]["Test"] == ["NONE"]
    assert {"FLAVOUR=theirs", "PYTHONPATH=/srv/lib"} <= set(config["Env"])
    tools = inside(engine, result.reference, "for tool in gcc g++ make cmake pip; do command -v $tool; done; true")
    assert tools == ""
    left = "ls -A /root/.ssh /etc/ssh/ssh_host_* /etc/hvdcloud/ssh_host_* /opt/own /opt/tools /opt/wheels /tmp/* "
    assert inside(engine, result.reference, f"{left} /var/lib/hvdcloud/* /var/lib/apt/lists/* 2> /dev/null; true") == ""
    # sshd, Open MPI and what they need; the node program with a Python environment of its own; py-spy, of 8 MB.
    assert after["Size"] - before["Size"] < 68e6
    assert inside(engine, result.reference, "command -v python; grep ^root: /etc/shadow").startswith(
        "/opt/venv/bin/python\nroot:*:"
    )


def test_requirements_and_a_dockerfile_go_on_top_and_it_trains_on_two_nodes(
    engine: Any, made: Made, tmp_path: Path, remover: list[str]
) -> None:
    project = project_in(tmp_path, "t-own-image")
    project.write("requirements.txt", "tabulate\npackaging==25.0\n")
    project.write("assets/word.txt", "from the project\n")
    project.write(
        "node.Dockerfile",
        "ARG BASE\nFROM debian:bookworm-slim AS other\nRUN echo from a stage > /stage.txt\n\nFROM ${BASE}\n"
        'RUN python -c "print(1<<20)"\n'
        "COPY\tassets/ /srv/assets/\nCOPY --from=other /stage.txt /srv/\nENV FLAVOUR=mine\nUSER nobody\n"
        'ENTRYPOINT ["/bin/false"]\n',
    )
    image = {"base": made.base, "dockerfile": "node.Dockerfile"}
    project.configure(image=image, checkpoints={"keep_every": 0.2})
    built = project.hvdcloud("build", "--json", timeout=1800)
    reference = built.json["result"]["reference"]
    plan = find_plan(ImageConfig(**image), project_dir=project.folder)
    remover.extend(step.reference for step in plan.steps)
    assert reference == plan.reference
    assert inside(engine, reference, "cat /srv/assets/word.txt /srv/stage.txt") == "from the project\nfrom a stage"
    script = "python -c 'import packaging; print(packaging.__version__)'; command -v tabulate"
    assert inside(engine, reference, script) == "25.0\n/opt/requirements/bin/tabulate"
    project.write("train.py", REDUCES)
    with brought_up(project, engine):
        for controller in ("gloo", "mpi"):
            out = project.hvdcloud("run", "--controller", controller).out
            for rank in range(2):
                assert f"[{rank}] rank {rank} of 2 sums 1 mine /srv/lib\n" in out


@pytest.mark.parametrize(
    ("lines", "cause", "command"),
    [
        ("RUN touch /lib/ld-musl-x86_64.so.1", "it has musl instead of glibc", "image.base"),
        ("RUN rm /usr/bin/apt-get", "it has no apt-get", "image.base"),
        ("", "there is no Python on its PATH (/usr/local/sbin:", "image.base"),
        (OLD_PYTHON, "its Python is too old: /usr/bin/python3 is Python 3.8.20; 3.10 is needed", "image.base"),
    ],
    ids=["musl", "no-apt", "no-python", "old-python"],
)
def test_an_image_that_cannot_be_a_node_says_why(
    make: Make, built: Build, lines: str, cause: str, command: str
) -> None:
    name = make(BARE, lines, tag="refused")
    with pytest.raises(ImageError) as raised:
        built(base=name)
    assert raised.value.code == ExitCode.IMAGE
    assert raised.value.message.startswith(f"image.base {name} can't be a node: {cause}")
    assert command in raised.value.hint


AS_ROOT = 'USER root\nSHELL ["/bin/sh", "-c"]\nRUN rm -r '
NO_TORCH = f"{AS_ROOT} /opt/venv/lib/python3.11/site-packages/torch"
NO_TORCHRUN = f"{AS_ROOT} /opt/venv/bin/torchrun"
NO_IMPORT = "image.framework is torch, but /opt/venv/bin/python can't import it: "


@pytest.mark.nightly
def test_an_image_without_a_framework_is_a_node_for_what_starts_itself_and_gets_no_compiler(
    engine: Any, theirs: str, make: Make, built: Build
) -> None:
    name = make(theirs, NO_TORCH, tag="no-torch")
    node = built(base=name, launcher="each")
    tools = "for tool in mpirun gcc g++ make hvdcloud-node; do command -v $tool; done; true"
    assert inside(engine, node.reference, tools) == "/opt/hvdcloud/bin/hvdcloud-node"
    builder = node.plan.steps[0].reference
    assert inside(engine, builder, "for tool in gcc g++ make; do command -v $tool; done; true") == ""


@pytest.mark.parametrize(
    ("lines", "launcher", "config", "cause"),
    [
        (NO_TORCH, "torchrun", {}, NO_IMPORT),
        (
            NO_TORCH,
            "each",
            {"framework": "torch"},
            "image.framework is torch, but /opt/venv/bin/python can't import it: ",
        ),
        pytest.param(NO_TORCHRUN, "torchrun", {}, "torchrun is not on its PATH (", marks=pytest.mark.nightly),
    ],
    ids=["torchrun-no-torch", "each-no-torch", "no-torchrun"],
)
def test_an_image_that_lacks_what_its_launcher_needs_says_so(
    make: Make, theirs: str, built: Build, lines: str, launcher: Launcher, config: dict[str, str], cause: str
) -> None:
    name = make(theirs, lines, tag="lacks")
    with pytest.raises(ImageError) as raised:
        built(base=name, launcher=launcher, **config)
    assert raised.value.message.startswith(f"image.base {name} can't be a node: {cause}")


def dockerfile(folder: Path, lines: str) -> None:
    (folder / "Dockerfile").write_text(f"ARG BASE\nFROM ${{BASE}}\n{lines}\n")


@pytest.mark.nightly
def test_up_builds_a_dockerfile_on_top_of_ours_once_and_a_cluster_that_never_ran_needs_no_login(
    engine: Any, image: str, remover: list[str], tmp_path: Path
) -> None:
    project = project_in(tmp_path, "t-own-up")
    dockerfile(project.folder, "COPY mine.txt /\nENV MINE=1")
    mine = f"{uuid.uuid4()}\n"
    project.write("mine.txt", mine)
    project.configure(nodes=1, image={"dockerfile": "Dockerfile"})
    planned = project.hvdcloud("up", "--dry-run")
    assert planned.out.startswith("cluster t-own-up: 1 node on this machine\n")
    assert " is not on this engine: `up` builds it first\n" in planned.err
    try:
        up = project.hvdcloud("up", "--json", timeout=600).json["result"]
        assert (len(up["nodes"]), up["created"]) == (1, True)
        remover.append(up["image"])
        assert project.hvdcloud("ssh", "0", "--", "cat", "/mine.txt").out == mine
        assert not project.hvdcloud("up", "--json").json["result"]["created"]
        changes_no_layer_of_ours(engine, up["image"], ours=image)
        builds_once(project.folder, remover, up["image"], engine.images.get(up["image"]).id)
        project.write("Dockerfile", "ARG BASE\nFROM ${BASE}\n")
        changed = project.hvdcloud("up", expect=2).err
        assert "cluster t-own-up was made before this changed: Dockerfile" in changed
        assert "→ hvdcloud down && hvdcloud up applies it" in changed
    finally:
        # Not --force: it holds nothing.
        project.hvdcloud("down")


def changes_no_layer_of_ours(engine: Any, reference: str, *, ours: str) -> None:
    found, below = (engine.images.get(name).attrs for name in (reference, ours))
    layers = below["RootFS"]["Layers"]
    assert found["RootFS"]["Layers"][: len(layers)] == layers
    assert found["Config"]["Entrypoint"] == ["/usr/local/bin/hvdcloud-node", "entrypoint"]
    assert "MINE=1" in found["Config"]["Env"]


def builds_once(folder: Path, remover: list[str], reference: str, image_id: str) -> None:
    """A file that it does not copy is sent, and makes no other image; one that it copies does."""
    config = ImageConfig(dockerfile="Dockerfile")
    events: list[BuildEvent] = []
    again = build(config, project_dir=folder, options=Options(progress=events.append))
    assert (again.reference, again.image_id, again.cached, events) == (reference, image_id, True, [])
    (folder / "train.py").write_text("print()")
    edited = build(config, project_dir=folder)
    assert (edited.reference, edited.image_id) == (reference, image_id)
    (folder / "mine.txt").write_text("other")
    changed = find_plan(config, project_dir=folder)
    assert changed.reference != reference
    steps = (step for plan in (again.plan, edited.plan, changed) for step in plan.steps)
    remover.extend(step.reference for step in steps if step.reference.startswith("hvdcloud/user:"))


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ("RUN rm /usr/sbin/sshd", "the node program does not come up at its step sshd: "),
        pytest.param("RUN rm -r /opt/hvdcloud/venv", "the node program does not come up: ", marks=pytest.mark.nightly),
        ("RUN usermod -s /usr/sbin/nologin root", "root can't log in and use the node program: "),
        pytest.param(
            "ENV PATH=/usr/bin:/bin", "horovodrun is not on its PATH (/usr/bin:/bin)", marks=pytest.mark.nightly
        ),
        (
            "RUN sed -i 's/^Version: .*/Version: 2.12.0/' /opt/venv/lib/python3.11/site-packages/torch-*/METADATA",
            "Horovod does not work with run.controller gloo: "
            "Horovod was compiled with torch 2.13.0+cpu, but torch 2.12.0",
        ),
    ],
    ids=["no-sshd", "no-node-program", "no-shell", "no-path", "another-torch"],
)
def test_a_dockerfile_that_breaks_the_node_says_so(built: Build, tmp_path: Path, lines: str, cause: str) -> None:
    dockerfile(tmp_path, lines)
    with pytest.raises(ImageError) as raised:
        built(dockerfile="Dockerfile")
    assert raised.value.message.startswith(f"image.dockerfile Dockerfile can't be a node: {cause}")
