"""The image for the launchers that need no Horovod: what is built and what it is called."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import hvdcloud
from hvdcloud.config.model import ImageConfig, Launcher
from hvdcloud.errors import UsageError
from hvdcloud.image.plan.context import Step, dockerfiles
from hvdcloud.image.plan.custom_base import Base, Needs
from hvdcloud.image.plan.steps import ImagePlan, plan_image
from hvdcloud.image.plan.versions import ROWS, check_fits, find

KINDS = list(dict.fromkeys((row.framework, row.device) for row in ROWS))
BASE = Base(reference="theirs:1", identity="sha256:a")
each_kind = pytest.mark.parametrize(("framework", "device"), KINDS)


def planned(folder: Path, launcher: Launcher, *, base: Base | None = None, **config: str | None) -> ImagePlan:
    if base is not None:
        config["base"] = base.reference
    image_config = ImageConfig.model_validate({"requirements": None, **config})
    return plan_image(image_config, project_dir=folder, base=base, needs=Needs(launcher=launcher))


def content(step: Step, name: str) -> str:
    (entry,) = [entry for entry in step.context.hashed if entry.path == name]
    return (entry.content or b"").decode()


@each_kind
def test_with_and_without_horovod_no_image_has_the_same_name(tmp_path: Path, framework: str, device: str) -> None:
    compiled, torchrun, each = (
        planned(tmp_path, launcher, framework=framework, device=device) for launcher in ("horovod", "torchrun", "each")
    )
    assert {step.reference for step in compiled.steps}.isdisjoint(step.reference for step in torchrun.steps)
    assert torchrun == each, "a launcher that needs the same image needs no other build"


def test_what_only_images_without_horovod_are_made_of_compiles_no_horovod_again(tmp_path: Path) -> None:
    builder, plain = (planned(tmp_path, launcher).steps[0] for launcher in ("horovod", "torchrun"))
    assert plain.reference.startswith("hvdcloud/base:")
    [dockerfile] = (entry for entry in plain.context.hashed if entry.path == plain.dockerfile)
    alone = (dockerfiles() / "plain-builder.Dockerfile").read_bytes()
    assert (dockerfile.content or b"").startswith(alone)
    assert alone not in {entry.content for entry in builder.context.hashed}


@each_kind
def test_the_build_proves_what_ranks_need(tmp_path: Path, framework: str, device: str) -> None:
    proofs = {
        launcher: planned(tmp_path, launcher, framework=framework, device=device).steps[-2].arguments["PROOF"]
        for launcher in ("horovod", "torchrun", "each")
    }
    alone = "torchrun" if framework == "torch" else "tensorflow"
    assert proofs == {"horovod": "gloo mpi", "torchrun": alone, "each": alone}


def test_labels_and_constraints_name_no_horovod_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("idna\n")
    base, _, project = planned(tmp_path, "torchrun", requirements="requirements.txt").steps
    assert base.labels["hvdcloud-image-torch"] == "2.13.0+cpu"
    assert base.labels["hvdcloud-image-builder"] == f"hvdcloud {hvdcloud.__version__}"
    assert "hvdcloud-image-horovod" not in base.labels
    assert content(project, "constraints.txt").splitlines() == ["torch==2.13.0+cpu", "numpy>=2,<3"]


@pytest.mark.parametrize(("horovod", "newest"), [(True, "2.13.0"), (False, "2.14.1")])
def test_without_horovod_the_default_is_the_same_and_more_may_be_chosen(horovod: bool, newest: str) -> None:
    with pytest.raises(UsageError) as raised:
        find("torch", "cuda", "0", horovod=horovod)
    assert re.findall(r"\d+\.\d+\.\d+", raised.value.hint)[-1] == newest
    assert find("torch", "cuda", horovod=horovod).version == "2.7.1"


def test_a_gpu_gets_no_row_that_cannot_have_horovod_unless_none_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    row = find("torch", "cuda", "2.7.1")
    monkeypatch.setattr("hvdcloud.image.plan.versions.ROWS", tuple(each for each in ROWS if each.version != "2.13.0"))
    with pytest.raises(UsageError, match=r"does not run on x") as raised:
        check_fits(row, gpu="x", capability="12.0")
    assert raised.value.hint.startswith("take another GPU")
    with pytest.raises(UsageError) as raised:
        check_fits(row.without_horovod(), gpu="x", capability="12.0")
    assert raised.value.hint == "set image.version: 2.14.1, whose image does"


@pytest.mark.parametrize(
    ("launcher", "config", "framework", "proof"),
    [
        ("horovod", {}, "torch", "gloo"),
        ("torchrun", {}, "torch", "torchrun"),
        ("each", {}, "any", "any"),
        ("each", {"framework": "torch"}, "torch", "torch"),
        ("each", {"framework": "tensorflow"}, "tensorflow", "tensorflow"),
    ],
)
def test_an_own_image_has_to_have_what_the_launcher_needs(
    tmp_path: Path, launcher: Launcher, config: dict[str, str], framework: str, proof: str
) -> None:
    builder, node = planned(tmp_path, launcher, base=BASE, **config).steps
    assert builder.arguments["FRAMEWORK"] == framework
    assert node.arguments["PROOF"] == proof
    assert builder.reference.startswith(f"hvdcloud/own-builder:{framework}-cpu-")
    sent = {entry.path for entry in builder.context.hashed if "horovod" in entry.path}
    assert bool(sent) == ("HOROVOD_VERSION" in builder.arguments) == (launcher == "horovod")


def test_an_own_dockerfile_on_ours_is_proven_with_the_launcher_that_it_is_for(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("ARG BASE\nFROM ${BASE}\n")
    compiled, plain = (planned(tmp_path, launcher, dockerfile="Dockerfile") for launcher in ("horovod", "torchrun"))
    assert (compiled.last.arguments["PROOF"], plain.last.arguments["PROOF"]) == ("gloo mpi", "torchrun")
    assert compiled.reference != plain.reference
