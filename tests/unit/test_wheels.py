"""What `make wheels` makes of the wheel that was compiled, and says of it."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
from pathlib import Path

import pytest
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from hvdcloud.errors import ImageError, UsageError
from hvdcloud.image.plan.versions import ROWS
from tools.wheels import find_row, patched_wheel, readme, upstream_line, version_of

ROW = find_row("torch-2.13.0-cpu")
INFO = "horovod-0.28.1.dist-info"
OURS = "horovod-0.28.1+torch.2.13.0.cpu.dist-info"
COMPILED = {
    "horovod/__init__.py": "__version__ = '0.28.1'\n",
    f"{INFO}/METADATA": "Metadata-Version: 2.4\nName: horovod\nVersion: 0.28.1\nRequires-Dist: psutil\n",
    f"{INFO}/licenses/LICENSE": "Apache\n",
    f"{INFO}/RECORD": "",
}


def zipped(files: dict[str, str]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return content.getvalue()


def test_the_version_says_that_it_is_not_upstreams_and_still_is_what_others_require() -> None:
    assert version_of(ROW) == "0.28.1+torch.2.13.0.cpu"
    for row in ROWS:
        if row.horovod:
            name, version, _, _ = parse_wheel_filename(f"horovod-{version_of(row)}-cp311-cp311-linux_x86_64.whl")
            assert (name, version) == ("horovod", Version(f"{row.horovod}+{row.label.replace('-', '.')}"))


def test_the_wheel_keeps_its_license_and_has_its_patches_and_its_framework() -> None:
    made = patched_wheel(zipped(COMPILED), ROW, {"horovod-0.28.1-cxx17.patch": b"patch"})
    with zipfile.ZipFile(io.BytesIO(made)) as file:
        files = {name: file.read(name) for name in file.namelist()}
    assert files[f"{OURS}/METADATA"].decode().splitlines() == [
        "Metadata-Version: 2.4",
        "Name: horovod",
        "Version: 0.28.1+torch.2.13.0.cpu",
        "Requires-Dist: torch==2.13.0+cpu",
        "Requires-Dist: psutil",
    ]
    assert files[f"{OURS}/licenses/LICENSE"] == b"Apache\n"
    assert files[f"{OURS}/patches/horovod-0.28.1-cxx17.patch"] == b"patch"
    assert not [name for name in files if name.startswith(INFO + "/")]
    # pip checks what RECORD says of each file.
    record = {name: (digest, size) for name, digest, size in csv.reader(files[f"{OURS}/RECORD"].decode().splitlines())}
    assert record.keys() == files.keys()
    for name, (digest, size) in record.items():
        if name != f"{OURS}/RECORD":
            found = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
            assert (digest, size) == (f"sha256={found}", str(len(files[name])))
    assert made == patched_wheel(zipped(COMPILED), ROW, {"horovod-0.28.1-cxx17.patch": b"patch"})


@pytest.mark.parametrize("missing", [f"{INFO}/licenses/LICENSE", "Version: 0.28.1"])
def test_a_wheel_without_its_license_or_of_another_version_is_refused(missing: str) -> None:
    compiled = {name: text.replace(missing, "Version: 0.28.0") for name, text in COMPILED.items() if name != missing}
    with pytest.raises(ImageError, match=r"not Horovod 0\.28\.1 with its license"):
        patched_wheel(zipped(compiled), ROW, {})


def test_the_readme_says_what_each_patch_answers(tmp_path: Path) -> None:
    (tmp_path / f"horovod-{version_of(ROW)}-cp311-cp311-linux_x86_64.whl").write_bytes(b"")
    said = readme(tmp_path)
    assert all(upstream_line(patch) in said for patch in ROW.patches)
    # Every patch of any row has a line.
    assert {len(upstream_line(patch).split("|")) for row in ROWS for patch in row.patches} == {6}
    assert "`tf-keras`" not in said
    assert f"--extra-index-url {ROW.index} ./horovod-{version_of(ROW)}-cp311" in said
    assert "LICENSE" in said


@pytest.mark.parametrize("label", ["", "torch-2.14.1-cuda", "torch-1.0-cpu"])
def test_a_row_without_horovod_is_refused_with_those_that_have_it(label: str) -> None:
    with pytest.raises(UsageError) as refused:
        find_row(label)
    assert "torch-2.13.0-cpu" in refused.value.hint
    assert "2.14.1" not in refused.value.hint
