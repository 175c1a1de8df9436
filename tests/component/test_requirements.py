"""Which files of a project pip gets to install its requirements, and what is refused before anything is built."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from hvdcloud.config.model import ImageConfig
from hvdcloud.errors import UsageError
from hvdcloud.image.plan.requirements import read
from hvdcloud.image.plan.steps import plan_image

NESTED = {"reqs/base.txt": "idna\n", "my reqs/x.txt": "idna\n", "limits.txt": "idna<4\n"}


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def sent(folder: Path) -> tuple[set[str], set[str]]:
    """The files that decide what is in the image, and those that pip gets beside them."""
    found = read(folder, "requirements.txt")
    assert found is not None
    hashed, unhashed = (
        {each.path.removeprefix("project/") for each in part} for part in (found.hashed, found.unhashed)
    )
    return hashed, unhashed


def name_of(folder: Path) -> str:
    return plan_image(ImageConfig(), project_dir=folder).reference


@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("-r reqs/base.txt", "reqs/base.txt"),
        ("-rreqs/base.txt", "reqs/base.txt"),
        ("  -r   ./reqs/../reqs/base.txt  # these", "reqs/base.txt"),
        ("--requirement reqs/base.txt", "reqs/base.txt"),
        ("--requirement=reqs/base.txt", "reqs/base.txt"),
        ("--requirem 'reqs/base.txt'", "reqs/base.txt"),
        ('-r "my reqs/x.txt"', "my reqs/x.txt"),
        ("-r my\\ reqs/x.txt", "my reqs/x.txt"),
        ("-r \\\n  reqs/base.txt", "reqs/base.txt"),
        ("-r reqs/ba\\\nse.txt", "reqs/base.txt"),
        ("-climits.txt", "limits.txt"),
        ("--constraint=limits.txt", "limits.txt"),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_file_that_is_included_in_any_way_comes_along(tmp_path: Path, line: str, file: str, encoding: str) -> None:
    write(tmp_path, {**NESTED, "train.py": ""})
    (tmp_path / "requirements.txt").write_bytes(f"six\r\n{line}\r\n".replace("\\\n", "\\\r\n").encode(encoding))
    assert sent(tmp_path) == ({"requirements.txt", file}, set())
    before = name_of(tmp_path)
    (tmp_path / file).write_text("idna==3.10\n")
    assert name_of(tmp_path) != before


@pytest.mark.parametrize(
    "line",
    [
        *("six", "six==1.17.0 \\\n  --hash=sha256:00 \\\n  --hash=sha256:11", "torch ; platform_machine == 'a/b'"),
        *("six @ https://example.org/six.whl", "git+https://example.org/six.git@main#egg=six"),
        *("-e git+https://a/b#egg=b", "-r https://example.org/r.txt", "-f https://example.org/wheels"),
        *(
            "-i https://example.org/simple",
            "-f nowhere",
            "--no-binary :all:",
            "--pre",
            "# -e .",
            "six # -e .",
            "-e",
            "'",
        ),
    ],
)
def test_without_a_path_of_the_project_no_code_goes_into_the_build(tmp_path: Path, line: str) -> None:
    write(tmp_path, {"requirements.txt": f"idna\n{line}\n", "setup.py": "", "train.py": ""})
    assert sent(tmp_path) == ({"requirements.txt"}, set())


PROJECT = {
    "pyproject.toml": "",
    "setup.cfg": "",
    "train.py": "",
    "hvdcloud.yaml": "",
    "src/mine/__init__.py": "",
    "lib/setup.py": "",
    "lib/lib.py": "",
    "VERSION": "1",
    ".env": "TOKEN=secret",
    ".gitignore": "data/\n",
    "data/x": "",
}
SENT = PROJECT.keys() - {".env", "data/x"}


@pytest.mark.parametrize(
    ("line", "decisive"),
    [
        ("./lib", {"lib/setup.py", "lib/lib.py"}),
        ("lib/", {"lib/setup.py", "lib/lib.py"}),
        ("./lib[all] ; python_version > '3'", {"lib/setup.py", "lib/lib.py"}),
        ("lib @ file:lib", {"lib/setup.py", "lib/lib.py"}),
        ("file:./lib#egg=lib", {"lib/setup.py", "lib/lib.py"}),
        ("-f lib", {"lib/setup.py", "lib/lib.py"}),
        (".", SENT - {"hvdcloud.yaml"}),
        (".[dev]", SENT - {"hvdcloud.yaml"}),
        ("-e .", {"pyproject.toml", "setup.cfg"}),
        ("-e .[dev,test]", {"pyproject.toml", "setup.cfg"}),
        ("--editable=./lib", {"lib/setup.py"}),
        ("-elib", {"lib/setup.py"}),
    ],
)
def test_a_package_of_the_project_is_built_among_its_files_and_again_when_it_changes(
    tmp_path: Path, line: str, decisive: set[str]
) -> None:
    write(tmp_path, {**PROJECT, "reqs/all.txt": f"{line}\n", "requirements.txt": "-r reqs/all.txt\n"})
    requirements = {"requirements.txt", "reqs/all.txt"}
    hashed, unhashed = sent(tmp_path)
    assert (hashed, hashed | unhashed) == (decisive | requirements, SENT | requirements)
    for name in sorted(SENT):
        before = name_of(tmp_path)
        (tmp_path / name).write_text("# another\n")
        assert (name_of(tmp_path) != before) is (name in hashed)


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        (
            "six\nnumpy @ file:///croot/numpy/work\n",
            "line 2: /croot/numpy/work is a path of one machine",
            "NAME==VERSION",
        ),
        ("numpy@file:///C:/b/numpy", "line 1: /C:/b/numpy is a path of one machine", "pip list --format=freeze"),
        ("-e /home/me/project", "line 1: /home/me/project is a path of one machine", "./NAME"),
        ("six \\\n  --hash=sha256:0\n# no\n~/lib", "line 4: ~/lib is a path of one machine", "./NAME"),
        ("-e git+file:///home/me/lib#egg=lib", "line 1: /home/me/lib is a path of one machine", "./NAME"),
        ("-r /home/me/r.txt", "line 1: /home/me/r.txt is a path of one machine", "./NAME"),
        ("mine @ git+ssh://git@example.org/mine", "needs an SSH key, and a build has none", "git+https://"),
        ("-e ../lib", "line 1: /.*/lib is not below the project's folder", "move it"),
        ("-e ./nowhere", "line 1: .*/nowhere does not exist", "create it"),
        ("-r nowhere.txt", "line 1: .*/nowhere.txt does not exist", "create it"),
        ("./data", r"line 1: data is empty, or \.gitignore or \.dockerignore excludes it", "take data out"),
    ],
)
def test_what_no_build_has_is_said_with_its_line_before_anything_is_built(
    tmp_path: Path, text: str, says: str, hint: str
) -> None:
    write(tmp_path, {"requirements.txt": text, ".gitignore": "data/\n", "data/setup.py": ""})
    with pytest.raises(UsageError, match=f"{tmp_path}/requirements.txt.*{says}") as raised:
        plan_image(ImageConfig(), project_dir=tmp_path)
    assert hint in raised.value.hint


def test_a_file_that_is_not_utf_8_is_said_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_bytes("six\n# für später\nidna\n".encode("latin-1"))
    with pytest.raises(UsageError, match=r"requirements\.txt, line 2: 'utf-8' codec can't decode byte 0xfc") as raised:
        plan_image(ImageConfig(), project_dir=tmp_path)
    assert raised.value.hint == "save the file as UTF-8"
