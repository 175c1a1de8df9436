"""What `hvdcloud init` writes, as far as it can be checked without the frameworks."""

from __future__ import annotations

import ast
import re
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import hvdcloud
from hvdcloud.checks import Status
from hvdcloud.config.model import Config, Launcher
from hvdcloud.doctor.command import check_command
from hvdcloud.doctor.machine import project_checks
from hvdcloud.lifecycle.init import TEMPLATES, init
from hvdcloud.remote.code import list_code
from hvdcloud.training_script import read_script
from tests.support.configs import load_config

TRAINING = [name for name in TEMPLATES if name != "bench"]
# What the images bring (numpy comes with TensorFlow), and what packages are called when they are imported.
IN_THE_IMAGE = {"torch": {"torch"}, "tensorflow": {"tensorflow", "numpy"}}
IMPORT_NAMES = {"scikit-learn": "sklearn"}


@pytest.fixture(params=TRAINING)
def template(request: pytest.FixtureRequest) -> Path:
    return Path(hvdcloud.__file__).parent / "templates" / str(request.param)


def config_of(template: Path) -> Config:
    return load_config(template / "hvdcloud.yaml", environ={})


def imported_packages(script: Path) -> set[str]:
    packages: set[str] = set()
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            packages.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            packages.add((node.module or "").split(".")[0])
    return packages - set(sys.stdlib_module_names)


def requirements(template: Path) -> list[Requirement]:
    lines = (template / "requirements.txt").read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line.strip() and not line.startswith("#")]


def uncommented(text: str) -> str:
    """hvdcloud.yaml with every key that it offers in a comment switched on."""
    return re.sub(r"^(\s+)# (\w+: )", r"\1\2", text, flags=re.MULTILINE)


def test_the_template_has_all_that_a_project_needs(template: Path, tmp_path: Path) -> None:
    init(tmp_path / "digits", template=template.name, name=None)
    files = {".gitignore", "hvdcloud.yaml", "requirements.txt", "train.py"}
    assert {path.name for path in (tmp_path / "digits").iterdir()} == files


def test_the_image_and_requirements_have_every_package_the_script_imports(template: Path) -> None:
    required = {IMPORT_NAMES.get(requirement.name, requirement.name) for requirement in requirements(template)}
    config = config_of(template)
    launcher = {"horovod"} if config.run.launcher == "horovod" else set()
    assert imported_packages(template / "train.py") == IN_THE_IMAGE[config.image.framework] | launcher | required


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_launcher_is_that_of_the_script(name: str, tmp_path: Path) -> None:
    init(tmp_path, template=name, name=None)
    config = load_config(tmp_path / "hvdcloud.yaml", environ={})
    assert config.run.launcher in read_script(tmp_path / "train.py").launchers
    (check,) = (each for each in project_checks(config) if each.name == "files")
    assert check.run().status is Status.OK


@pytest.mark.parametrize("launcher", ["horovod", "torchrun"])
def test_the_bench_runs_under_both_launchers(launcher: Launcher, tmp_path: Path) -> None:
    init(tmp_path, template="bench", name=None)
    words, code = ["python", "train.py"], partial(list_code, tmp_path, contents=False)
    assert check_command(words, "", tmp_path, code, launcher=launcher).status is Status.OK


def test_the_configuration_is_valid(template: Path) -> None:
    config = config_of(template)
    assert (config.provider, config.run.command) == ("local", "python train.py")
    assert (template / str(config.image.requirements)).is_file()


def test_only_the_elastic_template_continues_without_some_of_their_nodes(template: Path) -> None:
    config = config_of(template)
    if template.name.endswith("-elastic"):
        assert config.run.elastic is not None
        assert (config.run.elastic.min, config.nodes, config.run.elastic.max) == (1, 4, 4)
    else:
        assert (config.run.elastic, config.nodes) == (None, 2)


def test_every_key_that_a_comment_offers_is_valid(template: Path, tmp_path: Path) -> None:
    text = (template / "hvdcloud.yaml").read_text(encoding="utf-8")
    file = tmp_path / "hvdcloud.yaml"
    file.write_text(uncommented(text), encoding="utf-8")
    config = load_config(file, flags={"provider": "gce"}, environ={})
    assert config.run.secrets == ["WANDB_API_KEY"]
    assert config.checkpoints.bucket == "gs://my-bucket/digits"
    assert config.image.repository
    assert config.run.slots_per_node == 2


def test_checkpoints_on_the_laptop_are_not_sent_to_the_nodes(template: Path, tmp_path: Path) -> None:
    project = tmp_path / "digits"
    shutil.copytree(template, project, ignore=shutil.ignore_patterns("__pycache__"))
    (project / "checkpoints").mkdir()
    (project / "checkpoints" / "checkpoint-001.bin").write_bytes(b"weights")
    sent = {file.path for file in list_code(project)}
    assert {"train.py", "requirements.txt"} <= sent
    assert not any(path.startswith("checkpoints") for path in sent)
