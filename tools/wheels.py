"""Makes a wheel of Horovod with its patches, by the images' recipe: `make wheels ROW=torch-2.13.0-cpu`.

The stage `horovod` of dockerfiles/builder.Dockerfile compiles it; what the engine's build cache has is not compiled
again. Beside the wheel are its source, as it was downloaded, every patch, and a README with what they answer upstream.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import hashlib
import io
import re
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hvdcloud import engine
from hvdcloud.config.model import ImageConfig
from hvdcloud.errors import HvdcloudError, ImageError, UsageError
from hvdcloud.image.build.builder import Options, carry_out
from hvdcloud.image.engine_reports import BuildEvent, Progress
from hvdcloud.image.plan.context import dockerfiles
from hvdcloud.image.plan.steps import ImagePlan, plan_image
from hvdcloud.image.plan.versions import GLIBC_VERSION, PYTHON_VERSION, ROWS, Row

_FOLDER = "/tmp/horovod"
"""Where the stage has compiled it."""


def find_row(label: str) -> Row:
    """The row of the version matrix with a label; raises UsageError: none with Horovod has it."""
    rows = {row.label: row for row in ROWS if row.horovod}
    if label not in rows:
        hint = f"make wheels ROW=… takes one of: {', '.join(rows)}"
        raise UsageError(f"there is no image {label or '(ROW is empty)'} with Horovod", hint=hint)
    return rows[label]


def version_of(row: Row) -> str:
    """The wheel's version, which says that it is not upstream's, and for what it is: `0.28.1+torch.2.13.0.cpu`."""
    return f"{row.horovod}+{row.label.replace('-', '.')}"


def make_wheel(row: Row, target: Path, *, progress: Progress) -> Path:
    """Puts a row's wheel, its source and a README into a folder; returns the wheel.

    Raises ImageError, NodeError: it could not be compiled.
    """
    wanted = {"framework": row.framework, "device": row.device, "version": row.version, "requirements": None}
    with tempfile.TemporaryDirectory() as project, contextlib.closing(engine.connect()) as client:
        plan = plan_image(ImageConfig.model_validate(wanted), project_dir=Path(project))
        reference = plan.steps[0].reference.replace("hvdcloud/builder:", "hvdcloud/wheel:")
        step = replace(plan.steps[0], reference=reference, target="horovod", what=f"Horovod for {row.package}")
        api: Any = client.api
        built = carry_out(api, ImagePlan(reference=reference, steps=(step,)), Options(progress=progress))
        try:
            compiled = _files(api, built.image_id, f"{_FOLDER}/dist")
            sources = _files(api, built.image_id, f"{_FOLDER}/horovod-{row.horovod}.tar.gz")
        finally:
            # The build cache keeps what was compiled.
            api.remove_image(reference, force=True)
    ((name, content),) = compiled.items()
    source = target / "source"
    source.mkdir(parents=True, exist_ok=True)
    patches = {f"horovod-{row.horovod}-{patch}.patch": _patch(row, patch) for patch in row.patches}
    for file, data in {**sources, **patches}.items():
        (source / file).write_bytes(data)
    wheel = target / name.replace(f"-{row.horovod}-", f"-{version_of(row)}-", 1)
    wheel.write_bytes(patched_wheel(content, row, patches))
    (target / "README.md").write_text(readme(target), encoding="utf-8")
    return wheel


def patched_wheel(content: bytes, row: Row, patches: Mapping[str, bytes]) -> bytes:
    """A wheel with a version of its own, the framework that it was compiled for, and the patches that it was made with.

    Its other files stay as they were compiled, Horovod's LICENSE among them.
    """
    old, new = f"horovod-{row.horovod}.dist-info/", f"horovod-{version_of(row)}.dist-info/"
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        files = {name: file.read(name) for name in file.namelist() if not name.endswith("/")}
        modes = {name.replace(old, new): file.getinfo(name).external_attr for name in files}
    files = {name.replace(old, new): data for name, data in files.items() if name != f"{old}RECORD"}
    metadata = files[f"{new}METADATA"].decode()
    found = f"\nVersion: {row.horovod}\n"
    if found not in metadata or not any(name.startswith(new) and "LICENSE" in name for name in files):
        message = f"the wheel that was compiled is not Horovod {row.horovod} with its license"
        raise ImageError(message, hint="look at dockerfiles/build/horovod.sh, then make wheels again")
    changed = f"\nVersion: {version_of(row)}\nRequires-Dist: {row.package}\n"
    files[f"{new}METADATA"] = metadata.replace(found, changed, 1).encode()
    files |= {f"{new}patches/{name}": data for name, data in patches.items()}
    record = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in sorted(files.items())]
    files[f"{new}RECORD"] = "".join(f"{line}\n" for line in [*record, f"{new}RECORD,,"]).encode()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files, key=lambda name: (name.startswith(new), name)):
            info = zipfile.ZipInfo(name)
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, modes.get(name, 0o100644 << 16)
            archive.writestr(info, files[name])
    return made.getvalue()


def readme(folder: Path) -> str:
    """What is said of the wheels that a folder has."""
    rows = [row for row in ROWS if row.horovod and [*folder.glob(f"horovod-{version_of(row)}-*.whl")]]
    lines = ["# Horovod, with the patches of hvdcloud's images", ""]
    lines += [
        "These are not upstream's wheels. Each is for one framework and no other, which pip installs with it:",
        "",
    ]
    for row in rows:
        (wheel,) = folder.glob(f"horovod-{version_of(row)}-*.whl")
        index = f" --extra-index-url {row.index}" if row.index else ""
        lines += ["```console", f"$ pip install{index} ./{wheel.name}", "```", ""]
    lines += [
        f"They need Python {PYTHON_VERSION}, glibc {GLIBC_VERSION} or newer, and Open MPI 4 (`openmpi-bin` of Debian",
        "and Ubuntu). They were compiled by `make wheels` in a clone of hvdcloud.",
        *("", "## Patches", "", "| patch | what it does | which images | upstream |", "| --- | --- | --- | --- |"),
        *(upstream_line(patch) for patch in sorted({patch for row in rows for patch in row.patches})),
        *("", "## Source and license", ""),
        "`source/` has Horovod's source package, as PyPI has it, and the patches; each wheel has its patches too, in",
        "its dist-info folder. Horovod is Apache 2.0, and so are the patches; what it contains of others is in its",
        "LICENSE, which each wheel has.",
    ]
    return "\n".join(lines) + "\n"


def upstream_line(patch: str) -> str:
    """The line of a patch in the table of dockerfiles/README.md."""
    text = (dockerfiles() / "README.md").read_text(encoding="utf-8")
    found = re.search(rf"(?m)^\| `{re.escape(patch)}` \|.*$", text)
    if found is None:
        message = f"dockerfiles/README.md does not say what the patch {patch} answers"
        raise UsageError(message, hint="add it to the table of patches, then make wheels again")
    return found[0]


def _patch(row: Row, patch: str) -> bytes:
    return (dockerfiles() / "patches" / f"horovod-{row.horovod}-{patch}.patch").read_bytes()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _files(api: Any, image: str, path: str) -> dict[str, bytes]:
    """The files at a path of an image, by their names."""
    container = api.create_container(image, ["true"])["Id"]
    try:
        chunks, _ = api.get_archive(container, path)
        content = b"".join(chunks)
    finally:
        api.remove_container(container)
    found = {}
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive:
            if (opened := archive.extractfile(member)) is not None:
                found[Path(member.name).name] = opened.read()
    return found


def _show(event: BuildEvent) -> None:
    if event.kind != "output":
        sys.stderr.write(f"{event.text}\n")


def main() -> int:
    """Makes the wheel of the row that the command line names."""
    parser = argparse.ArgumentParser(description="Make a wheel of Horovod with its patches.")
    parser.add_argument("row", nargs="?", default="")
    parser.add_argument("--to", type=Path, default=Path("dist/wheels"))
    given = parser.parse_args()
    try:
        wheel = make_wheel(find_row(given.row), given.to, progress=_show)
    except HvdcloudError as error:
        sys.stderr.write(f"wheels: {error.message}\n{error.details}\n→ {error.hint}\n")
        return 1
    sys.stdout.write(f"{wheel}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
