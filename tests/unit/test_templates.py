"""What `hvdcloud init` writes, as far as it can be checked without the frameworks."""

from __future__ import annotations

import ast
import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import hvdcloud
from hvdcloud.config import Config, load_config
from hvdcloud.lifecycle.init import TEMPLATES
from hvdcloud.remote.code import list_code

# What the images bring (numpy comes with TensorFlow), and what packages are called when they are imported.
IN_THE_IMAGE = {"torch": {"torch", "horovod"}, "keras": {"tensorflow", "numpy", "horovod"}}
IMPORT_NAMES = {"scikit-learn": "sklearn", "pytorch-optimizer": "pytorch_optimizer"}


@pytest.fixture(params=TEMPLATES)
def template(request: pytest.FixtureRequest) -> Path:
    return Path(hvdcloud.__file__).parent / "templates" / str(request.param)


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


def test_the_template_has_all_that_a_project_needs(template: Path) -> None:
    assert {path.name for path in template.iterdir() if path.is_file()} == {
        ".gitignore",
        "hvdcloud.yaml",
        "requirements.txt",
        "train.py",
    }


def test_each_template_names_its_framework(template: Path) -> None:
    framework = {"torch": "torch", "keras": "tensorflow"}[template.name]
    assert load_config(template / "hvdcloud.yaml", environ={}).image.framework == framework


def test_the_training_script_does_not_depend_on_hvdcloud(template: Path) -> None:
    assert "hvdcloud" not in imported_packages(template / "train.py")


def test_the_image_and_requirements_have_every_package_the_script_imports(template: Path) -> None:
    required = {IMPORT_NAMES.get(requirement.name, requirement.name) for requirement in requirements(template)}
    assert imported_packages(template / "train.py") == IN_THE_IMAGE[template.name] | required


def test_requirements_leave_framework_and_horovod_to_the_image(template: Path) -> None:
    assert not (IN_THE_IMAGE[template.name] | {"keras"}) & {requirement.name for requirement in requirements(template)}


def test_requirements_have_a_lower_and_an_upper_bound(template: Path) -> None:
    for requirement in requirements(template):
        assert {specifier.operator for specifier in requirement.specifier} == {">=", "<"}, str(requirement)


def test_the_configuration_is_valid(template: Path) -> None:
    config = load_config(template / "hvdcloud.yaml", environ={})
    assert (config.provider, config.nodes, config.run.command) == ("local", 2, "python train.py")
    assert (template / str(config.image.requirements)).is_file()


def test_every_key_that_a_comment_offers_is_valid(template: Path, tmp_path: Path) -> None:
    text = (template / "hvdcloud.yaml").read_text(encoding="utf-8")
    file = tmp_path / "hvdcloud.yaml"
    file.write_text(uncommented(text), encoding="utf-8")
    config = load_config(file, environ={})
    assert config.run.secrets == ["WANDB_API_KEY"]
    assert config.checkpoints.bucket == "gs://my-bucket/digits"
    assert config.image.repository
    assert config.run.slots_per_node == 2


@pytest.mark.parametrize("key", ["name", "provider", "nodes", "image", "run", "checkpoints", "limits"])
def test_the_file_shows_every_section_that_the_local_provider_uses(template: Path, key: str) -> None:
    assert key in yaml.safe_load((template / "hvdcloud.yaml").read_text(encoding="utf-8"))
    assert key in Config.model_fields


def test_checkpoints_on_the_laptop_are_not_sent_to_the_nodes(template: Path, tmp_path: Path) -> None:
    project = tmp_path / "digits"
    shutil.copytree(template, project, ignore=shutil.ignore_patterns("__pycache__"))
    (project / "checkpoints").mkdir()
    (project / "checkpoints" / "checkpoint-001.bin").write_bytes(b"weights")
    sent = {file.path for file in list_code(project)}
    assert {"train.py", "requirements.txt"} <= sent
    assert not any(path.startswith("checkpoints") for path in sent)
