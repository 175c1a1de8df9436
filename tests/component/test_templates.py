"""What `hvdcloud init` writes, as far as it can be checked without the frameworks."""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
import sys
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

import hvdcloud
from hvdcloud.checks import Status
from hvdcloud.cluster.model import ClusterSpec
from hvdcloud.config.file import load_config
from hvdcloud.config.model import Config
from hvdcloud.doctor.machine import machine_checks
from hvdcloud.errors import UsageError
from hvdcloud.lifecycle.init import TEMPLATES, init
from hvdcloud.lifecycle.up import make_spec
from hvdcloud.providers import platform
from hvdcloud.remote.code import list_code

TRAINING = [name for name in TEMPLATES if name != "bench"]
FRAMEWORKS = {name: "torch" if name.startswith("torch") else "tensorflow" for name in TRAINING}
# In the place of folders that `init` makes below the project.
DATA = {f"HVDCLOUD_DATA__{name}": f"file:///data/{name.lower()}" for name in ("TRAIN", "TEST")}
WITH_DATA = [name for name in TRAINING if name.endswith("-data")]
# What the images bring (numpy comes with TensorFlow), and what packages are called when they are imported.
IN_THE_IMAGE = {"torch": {"torch", "horovod"}, "tensorflow": {"tensorflow", "numpy", "horovod"}}
# What the scripts use where it is installed: requirements.txt offers it in a comment. torch and TensorFlow import
# tensorboard themselves, and only TensorFlow brings it.
OPTIONAL = {"torch": {"tensorboard", "wandb"}, "tensorflow": {"wandb"}}
IMPORT_NAMES = {"scikit-learn": "sklearn", "pytorch-optimizer": "pytorch_optimizer"}


@pytest.fixture(params=TRAINING)
def template(request: pytest.FixtureRequest) -> Path:
    return Path(hvdcloud.__file__).parent / "templates" / str(request.param)


@pytest.fixture(params=[name for name in TRAINING if name not in WITH_DATA])
def template_without_data(request: pytest.FixtureRequest) -> Path:
    return Path(hvdcloud.__file__).parent / "templates" / str(request.param)


def config_of(template: Path) -> Config:
    return load_config(template / "hvdcloud.yaml", environ=DATA if template.name in WITH_DATA else {})


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


def offered_requirements(template: Path) -> list[Requirement]:
    """Those that stand in a comment."""
    text = (template / "requirements.txt").read_text(encoding="utf-8")
    return [Requirement(line) for line in re.findall(r"^# ([\w-]+[<>=]\S+)$", text, flags=re.MULTILINE)]


def uncommented(text: str) -> str:
    """hvdcloud.yaml with every key that it offers in a comment switched on."""
    return re.sub(r"^(\s+)# (\w+: )", r"\1\2", text, flags=re.MULTILINE)


def test_the_template_has_all_that_a_project_needs(template: Path, tmp_path: Path) -> None:
    init(tmp_path / "digits", template=template.name, name=None)
    assert {path.name for path in (tmp_path / "digits").iterdir()} == {
        ".gitignore",
        "hvdcloud.yaml",
        "requirements.txt",
        "train.py",
        *(["make_data.py"] if template.name in WITH_DATA else []),
    }


def test_each_template_names_its_framework(template: Path) -> None:
    assert config_of(template).image.framework == FRAMEWORKS[template.name]


def test_the_training_script_does_not_depend_on_hvdcloud(template: Path) -> None:
    assert "hvdcloud" not in imported_packages(template / "train.py")


def test_the_image_and_requirements_have_every_package_the_script_imports(template: Path) -> None:
    required = {IMPORT_NAMES.get(requirement.name, requirement.name) for requirement in requirements(template)}
    offered = {requirement.name for requirement in offered_requirements(template)}
    assert offered == OPTIONAL[FRAMEWORKS[template.name]]
    in_the_image = IN_THE_IMAGE[FRAMEWORKS[template.name]]
    assert imported_packages(template / "train.py") - offered == in_the_image | required


def test_a_script_goes_without_the_packages_that_are_only_offered(template: Path) -> None:
    """Each of their imports is in a `try` with `except ImportError`."""
    tree = ast.parse((template / "train.py").read_text(encoding="utf-8"))
    guarded = {
        id(statement)
        for block in ast.walk(tree)
        if isinstance(block, ast.Try)
        and any(isinstance(handler.type, ast.Name) and handler.type.id == "ImportError" for handler in block.handlers)
        for statement in block.body
    }
    modules = {
        node: (node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    optional = [node for node, module in modules.items() if {"wandb", "tensorboard"} & set(module.split("."))]
    assert "wandb" in {modules[node] for node in optional}
    assert all(id(node) in guarded for node in optional)


@pytest.mark.parametrize("name", [name for name in TRAINING if not name.endswith("-elastic")])
def test_rank_0_alone_writes_charts_beside_the_checkpoints(name: str) -> None:
    """By the same lines in the template with data as in the plain one; no rank but 0 makes or feeds them."""
    folder = Path(hvdcloud.__file__).parent / "templates"
    script, plain = (
        (folder / each / "train.py").read_text(encoding="utf-8") for each in (name, name.removesuffix("-data"))
    )
    trees = [ast.parse(text) for text in (script, plain)]
    ours, theirs = (next(node for node in tree.body if getattr(node, "name", "").lower() == "charts") for tree in trees)
    assert ast.dump(ours) == ast.dump(theirs)
    assert 'folder / "tensorboard"' in ast.unparse(ours).replace("'", '"')
    on_rank_0 = {
        id(node)
        for test in ast.walk(trees[0])
        if isinstance(test, ast.If) and ast.unparse(test.test) == "hvd.rank() == 0"
        for node in ast.walk(test)
    }
    calls = [
        node
        for node in ast.walk(trees[0])
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"charts", "charts.add", "charts.close"}
    ]
    assert calls
    assert all(id(call) in on_rank_0 for call in calls)


def test_requirements_leave_framework_and_horovod_to_the_image(template: Path) -> None:
    required = {requirement.name for requirement in [*requirements(template), *offered_requirements(template)]}
    assert not (IN_THE_IMAGE[FRAMEWORKS[template.name]] | {"keras"}) & required


def test_requirements_have_a_lower_and_an_upper_bound(template: Path) -> None:
    for requirement in [*requirements(template), *offered_requirements(template)]:
        assert {specifier.operator for specifier in requirement.specifier} == {">=", "<"}, str(requirement)


def test_the_configuration_is_valid(template: Path) -> None:
    config = config_of(template)
    assert (config.provider, config.run.command) == ("local", "python train.py")
    assert (template / str(config.image.requirements)).is_file()


def test_only_the_elastic_templates_continue_without_some_of_their_nodes(template: Path) -> None:
    config = config_of(template)
    if template.name.endswith("-elastic"):
        assert config.run.elastic is not None
        assert (config.run.elastic.min, config.nodes, config.run.elastic.max) == (1, 4, 4)
    else:
        assert (config.run.elastic, config.nodes) == (None, 2)


@pytest.mark.parametrize("name", ["requirements.txt", ".gitignore"])
@pytest.mark.parametrize("plain", ["torch", "keras"])
def test_an_elastic_template_needs_what_the_plain_one_needs(plain: str, name: str) -> None:
    folder = Path(hvdcloud.__file__).parent / "templates"
    assert (folder / plain / name).read_text() == (folder / f"{plain}-elastic" / name).read_text()


def test_every_key_that_a_comment_offers_is_valid(template: Path, tmp_path: Path) -> None:
    text = (template / "hvdcloud.yaml").read_text(encoding="utf-8")
    file = tmp_path / "hvdcloud.yaml"
    file.write_text(uncommented(text), encoding="utf-8")
    data = dict.fromkeys(DATA, "gs://my-bucket/data") if template.name in WITH_DATA else {}
    config = load_config(file, flags={"provider": "gce"}, environ=data)
    assert config.run.secrets == ["WANDB_API_KEY"]
    assert config.checkpoints.bucket == "gs://my-bucket/digits"
    assert config.image.repository
    assert config.run.slots_per_node == 2


@pytest.mark.parametrize("key", ["name", "provider", "nodes", "image", "run", "checkpoints", "limits"])
def test_the_file_shows_every_section_that_the_local_provider_uses(template: Path, key: str) -> None:
    assert key in yaml.safe_load((template / "hvdcloud.yaml").read_text(encoding="utf-8"))
    assert key in Config.model_fields


@pytest.mark.parametrize("gpus", [0, 1, 4])
def test_doctor_has_nothing_to_say_of_what_init_writes(template_without_data: Path, gpus: int, tmp_path: Path) -> None:
    """Of machines, GPUs, image and files; the project at Google is made by `hvdcloud setup`."""
    init(tmp_path / "digits", template=template_without_data.name, name=None, gpus=gpus)
    config = load_config(tmp_path / "digits" / "hvdcloud.yaml", flags={"provider": "gce"}, environ={})
    assert (config.image.device, config.gce.gpu is not None) == (("cuda", True) if gpus else ("cpu", False))
    where = platform(config)
    checks = [*where.checks(spec(config)), *machine_checks(config, where, state_folder=tmp_path)]
    found = {each.name: each.run() for each in checks if each.name in {"machine", "GPU and image", "files"}}
    assert {name: (finding.status, finding.message) for name, finding in found.items()} == {
        name: (Status.OK, finding.message) for name, finding in found.items()
    }
    assert set(found) == {"machine", "GPU and image", "files"}


def spec(config: Config) -> ClusterSpec:
    context: Any = SimpleNamespace(config=config, bucket_url="file:///tmp/bucket")
    return make_spec(context, image="", public_key="")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_doctor_has_nothing_to_say_of_the_default_machines(device: str, tmp_path: Path) -> None:
    flags = {"name": "digits", "provider": "gce", "image.device": device}
    config = load_config(flags=flags, environ={})
    where = platform(config)
    checks = [*where.checks(spec(config)), *machine_checks(config, where, state_folder=tmp_path)]
    found = [each.run().status for each in checks if each.name in {"machine", "GPU and image"}]
    assert found == [Status.OK, Status.OK]


def test_reports_stay_out_of_git(template: Path) -> None:
    assert "report-*.html" in (template / ".gitignore").read_text().splitlines()


def test_checkpoints_on_the_laptop_are_not_sent_to_the_nodes(template: Path, tmp_path: Path) -> None:
    project = tmp_path / "digits"
    shutil.copytree(template, project, ignore=shutil.ignore_patterns("__pycache__"))
    (project / "checkpoints").mkdir()
    (project / "checkpoints" / "checkpoint-001.bin").write_bytes(b"weights")
    sent = {file.path for file in list_code(project)}
    assert {"train.py", "requirements.txt"} <= sent
    assert not any(path.startswith("checkpoints") for path in sent)


@pytest.mark.parametrize("name", WITH_DATA)
def test_a_template_with_data_names_its_own_folder_whatever_that_is_called(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "my digits #1"
    made = init(folder, template=name, name=None)
    assert made.before == ["python3 make_data.py"]
    config = load_config(folder / "hvdcloud.yaml", environ={})
    assert {key: each.folder for key, each in config.data.items()} == {
        "train": folder / "data" / "train",
        "test": folder / "data" / "test",
    }
    assert "gcloud storage rsync" in (folder / "hvdcloud.yaml").read_text()
    with pytest.raises(UsageError, match="nodes with GPUs do not have"):
        init(tmp_path / "other", template=name, name=None, gpus=1)
    assert not (tmp_path / "other").exists()


def test_both_templates_with_data_write_the_same_data(tmp_path: Path) -> None:
    for name in WITH_DATA:
        init(tmp_path / name, template=name, name=None)
    torch, keras = (tmp_path / name / "make_data.py" for name in WITH_DATA)
    assert torch.read_bytes() == keras.read_bytes()


def test_the_data_are_the_same_each_time_and_stay_on_this_machine(tmp_path: Path) -> None:
    templates = Path(hvdcloud.__file__).parent / "templates"
    spec_of = importlib.util.spec_from_file_location("make_data", templates / "make_data.py")
    assert spec_of is not None
    assert spec_of.loader is not None
    made = importlib.util.module_from_spec(spec_of)
    spec_of.loader.exec_module(made)
    for place in ("one", "two"):
        made.write_shards(tmp_path / place, 3, Random(1))
    one, two = ([path.read_bytes() for path in sorted((tmp_path / place).iterdir())] for place in ("one", "two"))
    assert one == two
    assert [len(shard) for shard in one] == [64 * 257] * 3
    assert len(set(one)) == 3
    assert {shard[record] for shard in one for record in range(0, len(shard), 257)} == set(range(10))
    (tmp_path / "project").mkdir()
    shutil.copy(templates / "torch-data" / ".gitignore", tmp_path / "project")
    (tmp_path / "project" / "data").mkdir()
    (tmp_path / "project" / "data" / "shard-0000.bin").write_bytes(one[0])
    assert {file.path for file in list_code(tmp_path / "project")} == {".gitignore"}
