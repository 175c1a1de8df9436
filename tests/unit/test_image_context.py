"""What goes into an image and what it is called, without an engine."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from hvdcloud.config.model import ImageConfig
from hvdcloud.errors import UsageError
from hvdcloud.image.build.builder import find_plan
from hvdcloud.image.plan import context, versions
from hvdcloud.image.plan.requirements import read as requirements_of
from hvdcloud.image.plan.sources import Sources, download_arguments, find_sources, local_wheels
from hvdcloud.image.plan.steps import base_step, builder_step, node_step, project_step
from tests.support.build_steps import build_step
from tests.support.small_image import packed

ROW = versions.find("torch", "cpu")
TORCH_WHEEL = "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"


def names(sent: context.Context) -> list[str]:
    return sorted(entry.path for entry in (*sent.hashed, *sent.unhashed))


def content(sent: context.Context, name: str) -> str:
    with tarfile.open(fileobj=io.BytesIO(packed(sent))) as archive:
        file = archive.extractfile(name)
        assert file is not None
        return file.read().decode()


def wheels(folder: Path, *names: str) -> Sources:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_bytes(b"wheel")
    return Sources(find_links=(folder,))


def context_of(folder: Path, row: versions.Row) -> context.Context:
    layer, path = build_step(), "requirements.txt"
    wanted = requirements_of(folder, path)
    assert wanted is not None
    return project_step(row, Sources(), builder=layer, below=layer, path=path, wanted=wanted).context


def test_the_same_files_make_the_same_bytes_and_the_same_name(tmp_path: Path) -> None:
    first, second = (base_step(ROW, Sources(), builder=build_step()).context for _ in range(2))
    assert packed(first) == packed(second)
    assert first.digest() == second.digest()


def test_changed_training_code_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("idna\n")
    before = find_plan(ImageConfig(), project_dir=tmp_path).reference
    (tmp_path / "train.py").write_text("print('new')\n")
    assert find_plan(ImageConfig(), project_dir=tmp_path).reference == before
    assert before.startswith("hvdcloud/project:")


def test_a_ca_bundle_is_sent_but_does_not_change_the_name(tmp_path: Path) -> None:
    bundle = tmp_path / "ca.crt"
    bundle.write_text("-----BEGIN CERTIFICATE-----\n")
    without, behind_proxy = (builder_step(ROW, Sources(ca_bundle=path)).context for path in (None, bundle))
    assert without.digest() == behind_proxy.digest()
    assert content(without, "ca-bundle.crt") == ""
    assert content(behind_proxy, "ca-bundle.crt") == bundle.read_text()


def test_the_node_program_is_in_the_image_and_the_rest_of_hvdcloud_is_not(tmp_path: Path) -> None:
    base = base_step(ROW, Sources(), builder=build_step())
    # What is the same for everybody, and published, changes with no line of hvdcloud's.
    assert not [name for name in names(base.context) if name.startswith("hvdcloud/")]
    sent = [name for name in names(node_step(ROW, base=base).context) if name.startswith("hvdcloud/")]
    assert {"hvdcloud/__init__.py", "hvdcloud/errors.py", "hvdcloud/node/__init__.py"} <= set(sent)
    assert {f"hvdcloud/runs/{name}.py" for name in ("__init__", "reports", "state")} <= set(sent)
    assert not [name for name in sent if name.startswith(("hvdcloud/cli", "hvdcloud/providers", "hvdcloud/image"))]


def test_local_wheels_of_what_the_image_pins_go_to_the_builder_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = wheels(
        tmp_path / "wheels",
        TORCH_WHEEL,
        "torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl",
        "torch-2.13.0+cpu-cp312-cp312-manylinux_2_28_x86_64.whl",
        "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_aarch64.whl",
        "torch-2.13.0+cpu-cp311-cp311-win_amd64.whl",
        "numpy-2.4.6-cp311-cp311-manylinux_2_28_x86_64.whl",
        "nvidia_cudnn_cu12-9.1.0-py3-none-manylinux_2_27_x86_64.whl",
        "mine-1.0-py3-none-any.whl",
    )
    builder = builder_step(ROW, sources)
    sent = [name for name in names(builder.context) if name.startswith("wheels/")]
    assert sent == ["wheels/numpy-2.4.6-cp311-cp311-manylinux_2_28_x86_64.whl", f"wheels/{TORCH_WHEEL}"]
    # Its index is asked only if the wheel is not here.
    assert "FRAMEWORK_INDEX_URL" not in builder.arguments
    assert builder_step(ROW, Sources()).arguments["FRAMEWORK_INDEX_URL"] == ROW.index
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert "FRAMEWORK_INDEX_URL" not in builder_step(ROW, Sources()).arguments


@pytest.mark.parametrize(
    ("device", "kept"),
    [
        ("cpu", {"torch==2.13.0+cpu", "horovod==0.28.1", "numpy>=2,<3"}),
        ("cuda", {"torch==2.7.1", "horovod==0.28.1", "nvidia-nccl-cu12==2.26.2"}),
    ],
)
def test_no_requirement_can_replace_torch_horovod_or_nccl(tmp_path: Path, device: str, kept: set[str]) -> None:
    (tmp_path / "requirements.txt").write_text("idna\n")
    sent = context_of(tmp_path, versions.find("torch", device))
    assert kept <= set(content(sent, "constraints.txt").splitlines())


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(("version", "keras"), [("2.15.1", "keras==2.15.0"), ("2.21.0", "keras<0")])
def test_no_requirement_brings_keras_3_or_the_other_tensorflow(
    tmp_path: Path, device: str, version: str, keras: str
) -> None:
    row = versions.find("tensorflow", device, version)
    (tmp_path / "requirements.txt").write_text("idna\n")
    sent = context_of(tmp_path, row)
    lines = content(sent, "constraints.txt").splitlines()
    assert {keras, f"tensorflow=={version}", f"tensorflow-cpu=={version}"} <= set(lines)
    locked = dict(context.locked(context.dockerfiles() / "locks" / row.lock))
    assert locked.get("keras") == (keras.partition("==")[2] or None)


@pytest.mark.parametrize("key", ["find_links", "ca_bundle"])
def test_a_path_in_the_configuration_that_is_not_there_is_named_with_its_key(tmp_path: Path, key: str) -> None:
    with pytest.raises(UsageError, match=rf"{tmp_path}/nowhere.*image\.{key}"):
        find_sources(**{"find_links": None, "ca_bundle": None, key: "nowhere"}, project_dir=tmp_path)


def test_proxies_and_package_indexes_reach_the_build_but_no_folder_of_this_machine() -> None:
    environment = {
        "https_proxy": "http://proxy:3128",
        "PIP_INDEX_URL": "https://pypi.example.org/simple",
        "PIP_EXTRA_INDEX_URL": "file:///opt/simple https://more.example.org/simple",
        "HOME": "/root",
    }
    assert download_arguments(environment) == {
        "https_proxy": "http://proxy:3128",
        "PIP_INDEX_URL": "https://pypi.example.org/simple",
        "PIP_EXTRA_INDEX_URL": "https://more.example.org/simple",
    }


def test_a_link_called_like_a_wheel_carries_no_file_from_elsewhere_into_the_build(tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text("mine\n")
    sources = wheels(tmp_path / "wheels", "mine-1-py3-none-any.whl")
    folder = sources.find_links[0]
    (folder / "mine-2-py3-none-any.whl").symlink_to("mine-1-py3-none-any.whl")
    os.mkfifo(folder / "mine-3-py3-none-any.whl")
    (folder / "mine-4-py3-none-any.whl").mkdir()
    assert [wheel.path.name[:6] for wheel in local_wheels(sources)] == ["mine-1", "mine-2"]
    link = folder / "mine-5-py3-none-any.whl"
    link.symlink_to("../credentials")
    with pytest.raises(UsageError, match=f"{link} is a link to {tmp_path}/credentials, outside of the folder"):
        local_wheels(sources)
