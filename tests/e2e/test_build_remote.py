"""`hvdcloud build --remote` with a gcloud that runs the steps of the build file on this machine's engine.

An earlier build seems to have pushed the images that a project's layer is built on.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.image.build.registry_cache import tag_of
from hvdcloud.image.plan.steps import ImagePlan, plan_image
from hvdcloud.lifecycle.build_remote import MACHINE
from tests.standins.registry import digest_of
from tests.support.configs import load_config
from tests.support.harness import Project, Screen, project_in

pytestmark = pytest.mark.engine

GCLOUD = """#!{python}
import json, os, subprocess, sys, tempfile
builds, submit, source, *flags = sys.argv[1:]
asked = dict(flag.removeprefix("--").split("=", 1) for flag in flags)
(step,) = json.load(open(asked["config"]))["steps"]
with tempfile.TemporaryDirectory() as work:
    subprocess.run(["tar", "-xf", source, "-C", work], check=True)
    script = open(os.path.join(work, "build.sh")).read()
    with open({kept!r}, "w") as file:
        json.dump({{"command": [builds, submit], "flags": asked, "script": script, "folder": os.getcwd()}}, file)
    print("step", step["entrypoint"], *step["args"], flush=True)
    running = subprocess.Popen([step["entrypoint"], *step["args"]], cwd=work, start_new_session=True)
    try:
        code = running.wait()
    except KeyboardInterrupt:
        os.killpg(running.pid, 9)
        sys.exit("Cancelled")
sys.exit(f"build step failed: {{code}}" if code else 0)
"""
# A node's image whose pip installs a file, can't find `missing`, and takes its time for `slow`.
NODE = r"""FROM debian:bookworm-slim
RUN mkdir -p /opt/tools/bin && printf '%s\n' '#!/bin/sh' \
    'for word; do requirements=$word; done' \
    'if grep -q missing "$requirements"; then' \
    '    echo "ERROR: No matching distribution found for missing"; exit 1; fi' \
    'if grep -q slow "$requirements"; then echo very slow; sleep 60; fi' \
    'cp "$requirements" /opt/requirements/installed' > /opt/tools/bin/python && chmod +x /opt/tools/bin/python
"""


@pytest.fixture(scope="module")
def pushed(registry: str, tmp_path_factory: pytest.TempPathFactory, engine: Any) -> None:
    """The registry has the images that every project's layer is built on."""
    plan = plan_of(make(registry, tmp_path_factory.mktemp("first"), "any\n"))
    for step, dockerfile in zip(plan.steps, (*("FROM scratch\nLABEL base=true\n",) * 2, NODE), strict=False):
        tag = f"{registry}/hvdcloud/remote:{tag_of(step)}"
        image, _ = engine.images.build(fileobj=io.BytesIO(dockerfile.encode()), tag=tag, rm=True)
        assert [item for item in engine.api.push(tag, stream=True, decode=True) if "error" in item] == []
        engine.images.remove(image.id, force=True)


@pytest.fixture
def project(registry: str, pushed: None, tmp_path: Path, engine: Any) -> Iterator[Callable[[str], Project]]:
    """Makes a project with these requirements; what the stand-in leaves on the engine is removed."""
    yield lambda requirements: make(registry, tmp_path, requirements)
    for image in engine.images.list():
        if any(tag.startswith(f"{registry}/hvdcloud/remote:") for tag in image.tags):
            engine.images.remove(image.id, force=True)


def make(registry: str, root: Path, requirements: str) -> Project:
    image = {"repository": f"{registry}/hvdcloud/remote", "find_links": "."}
    project = project_in(root, "t-remote", image=image, gce={"project": "lab"})
    project.write("requirements.txt", requirements)
    programs = root / "programs"
    programs.mkdir()
    (programs / "gcloud").write_text(GCLOUD.format(python=sys.executable, kept=str(root / "kept.json")))
    (programs / "gcloud").chmod(0o755)
    project.environ["PATH"] = f"{programs}:{os.environ['PATH']}"
    return project


def plan_of(project: Project) -> ImagePlan:
    config = load_config(project.folder / "hvdcloud.yaml", environ={})
    return plan_image(config.image, project_dir=config.project_dir, machine=MACHINE)


def test_what_the_registry_lacks_is_built_elsewhere_and_its_digest_is_the_answer(
    project: Callable[[str], Project], registry: str, tmp_path: Path
) -> None:
    made = project("numpy\n")
    reference = plan_of(made).reference
    built = made.hvdcloud("build", "--remote")
    again = made.hvdcloud("build", "--remote", "--json").json["result"]

    digest = digest_of(registry, "hvdcloud/remote", reference.rpartition(":")[2])
    assert built.out.splitlines()[-1] == again["digest"] == digest
    assert (again["cached"], again["reference"]) == (True, reference)
    assert "step bash build.sh\n" in built.err
    kept = json.loads((tmp_path / "kept.json").read_text())
    assert kept["command"] == ["builds", "submit"]
    assert (kept["flags"]["project"], kept["flags"]["region"], kept["folder"]) == ("lab", "global", "/")
    assert kept["script"].count("docker build ") == 1
    assert kept["script"].splitlines()[-1] == f"docker push {again['tag']}"


def test_ctrl_c_is_gclouds_too(project: Callable[[str], Project]) -> None:
    with project("slow\n").started("build", "--remote") as process:
        screen = Screen(process)
        screen.wait_for("very slow")
        process.send_signal(signal.SIGINT)
        screen.end()
    assert process.returncode == 130, screen.text
    assert "Cancelled" in screen.text


def test_what_it_needs_is_said_before_anything_is_sent(project: Callable[[str], Project], tmp_path: Path) -> None:
    made = project("any\n")
    assert "leave them out" in made.hvdcloud("build", "--remote", "--cache-to", "127.0.0.1:1/x", expect=2).err
    (tmp_path / "empty").mkdir()
    made.environ["PATH"] = str(tmp_path / "empty")
    assert "needs gcloud, which is not on this machine's PATH" in made.hvdcloud("build", "--remote", expect=2).err
    made.configure(image={})
    assert "image.repository is not set" in made.hvdcloud("build", "--remote", expect=2).err
    assert not (tmp_path / "kept.json").exists()
