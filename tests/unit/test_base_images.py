"""The images that ours start from: which bytes, and what labels say of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hvdcloud.cluster import model
from hvdcloud.config.model import ImageConfig
from hvdcloud.image.plan import base_images, versions
from hvdcloud.image.plan.context import dockerfiles
from hvdcloud.image.plan.custom_base import Needs
from hvdcloud.image.plan.steps import plan_image

OLD, NEW = (f"sha256:{digit * 64}" for digit in "12")
# Nothing that another source confirms was found, and no registry could be asked: `make lock-images` adds it.
BY_TAG = {"nvidia/cuda:12.5.1-devel-ubuntu22.04"}


def test_every_image_that_ours_start_from_is_listed_by_digest_or_with_a_reason() -> None:
    text = (dockerfiles() / base_images.FILE).read_text()
    known = base_images.parse(text)
    assert known.keys() == {base_images.DEBIAN, *(row.donor for row in versions.ROWS if row.donor)}
    assert {name for name, digest in known.items() if not digest} == BY_TAG
    for name in known:
        assert re.search(rf"^# .+\n{re.escape(name)}(@|$)", text, re.MULTILINE), f"{name}: no comment says from where"
    for name in BY_TAG:
        assert re.search(rf"^# By tag: .+\n{re.escape(name)}$", text, re.MULTILINE)


@pytest.mark.parametrize("file", sorted(dockerfiles().glob("*.Dockerfile")), ids=lambda file: file.name)
def test_a_dockerfile_names_no_image_itself(file: Path) -> None:
    text = file.read_text()
    stages = {"scratch", *re.findall(r"^FROM .+ AS (\w+)$", text, re.MULTILINE)}
    arguments = dict(re.findall(r"^ARG (\w+)(?:=(\S+))?$", text.partition("\nFROM ")[0], re.MULTILINE))
    for image in re.findall(r"^FROM (\S+)", text, re.MULTILINE):
        name = re.fullmatch(r"\$\{(\w+)\}", image)
        if name is None:
            assert image in stages
        else:
            assert arguments[name[1]] in ("", *stages), f"{name[1]} has a default that no digest stands for"


@pytest.mark.parametrize("row", versions.ROWS, ids=lambda row: row.label)
def test_builder_and_base_start_from_the_same_bytes_on_every_machine(row: versions.Row, tmp_path: Path) -> None:
    config = ImageConfig(framework=row.framework, device=row.device, version=row.version, requirements=None)
    needs = Needs(launcher="horovod" if row.horovod else "each")
    *builders, base, _ = plan_image(config, project_dir=tmp_path, needs=needs).steps
    debian = base_images.pinned(base_images.DEBIAN)
    assert re.fullmatch(r"debian:bookworm-slim@sha256:[0-9a-f]{64}", debian)
    assert {step.arguments["BASE_IMAGE"] for step in (*builders, base)} == {debian}
    assert base.labels[base_images.NAME_LABEL] == "docker.io/library/debian:bookworm-slim"
    assert f"debian:bookworm-slim@{base.labels[base_images.DIGEST_LABEL]}" == debian
    # By its tag, where that is all there is.
    assert base.labels.get("hvdcloud-image-cuda-donor", "") == base_images.pinned(row.donor)


def test_another_digest_is_another_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = ImageConfig(requirements=None)
    before = plan_image(config, project_dir=tmp_path)
    monkeypatch.setattr(base_images, "pinned", lambda name: f"{name}@{NEW}" if name else "")
    after = plan_image(config, project_dir=tmp_path)
    assert {step.reference for step in before.steps}.isdisjoint(step.reference for step in after.steps)


def test_no_label_of_an_image_marks_an_object_of_a_cluster() -> None:
    clusters = {value for name, value in vars(model).items() if name.startswith("LABEL_")}
    names = ("cluster", "owner", "node", "nodes", "torch", "cuda")
    ours = base_images.version_labels(dict.fromkeys(names, "1"))
    assert clusters >= {"managed-by", "hvdcloud-cluster"}
    assert clusters.isdisjoint(ours)
