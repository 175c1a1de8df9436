"""Which files of a project are sent to the nodes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hvdcloud.errors import UsageError
from hvdcloud.project_files import build_files
from hvdcloud.remote.code import list_code

NOBODY = 65534


def paths(folder: Path) -> list[str]:
    return [file.path for file in list_code(folder)]


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def test_everything_is_sent_sorted_but_git_and_caches(tmp_path: Path) -> None:
    write(tmp_path, "train.py", "lib/a.py", ".git/HEAD", "lib/__pycache__/a.pyc", ".venv/bin/python", ".env.example")
    assert paths(tmp_path) == [".env.example", "lib/a.py", "train.py"]


def test_gitignore_counts_in_every_folder_and_the_deepest_decides(tmp_path: Path) -> None:
    write(tmp_path, "a.log", "keep.log", "lib/a.log", "lib/b.log", "data/x.bin", "src/data/x.bin")
    (tmp_path / ".gitignore").write_text("*.log\n!keep.log\n/data/\n")
    (tmp_path / "lib" / ".gitignore").write_text("!b.log\n")
    assert paths(tmp_path) == [".gitignore", "keep.log", "lib/.gitignore", "lib/b.log", "src/data/x.bin"]


def test_dockerignore_counts_at_the_top(tmp_path: Path) -> None:
    write(tmp_path, "train.py", "big.bin", "lib/other.bin")
    (tmp_path / ".dockerignore").write_text("big.bin\n")
    (tmp_path / "lib" / ".dockerignore").write_text("other.bin\n")
    assert paths(tmp_path) == [".dockerignore", "lib/.dockerignore", "lib/other.bin", "train.py"]


@pytest.mark.parametrize(
    ("lines", "kept"),
    [
        # Docker's patterns begin at the top, Git's count in every folder.
        ("data\nmodels\n*.md\n", ["docs/keep.md", "docs/other.md", "src/data/__init__.py", "src/train.py"]),
        ("docs\n!docs/keep.md\n", ["README.md", "data/x.bin", "docs/keep.md", "src/data/__init__.py", "src/train.py"]),
        ("**\n!src\n", ["src/data/__init__.py", "src/train.py"]),
        ("src/*\n!src/data\n*/*.md\n", ["README.md", "data/x.bin", "src/data/__init__.py"]),
    ],
)
def test_dockerignore_means_for_nodes_what_it_means_for_docker(tmp_path: Path, lines: str, kept: list[str]) -> None:
    write(tmp_path, "src/train.py", "src/data/__init__.py", "data/x.bin", "docs/keep.md", "docs/other.md", "README.md")
    (tmp_path / ".dockerignore").write_text(lines)
    # Docker sends .dockerignore whatever it says.
    assert paths(tmp_path) == [".dockerignore", *kept]
    built = sorted(path.relative_to(tmp_path).as_posix() for path in build_files(tmp_path) if path.is_file())
    assert built == [".dockerignore", *kept]


def test_a_build_without_dockerignore_leaves_out_what_gitignore_does_and_with_one_it_does_not_count(
    tmp_path: Path,
) -> None:
    write(tmp_path, "train.py", "checkpoints/run/1.pt", "dist/x.whl")
    (tmp_path / ".gitignore").write_text("/checkpoints/\n/dist/\n")

    def built() -> list[str]:
        return [path.relative_to(tmp_path).as_posix() for path in build_files(tmp_path)]

    assert built() == [".gitignore", "train.py"]
    (tmp_path / ".dockerignore").write_text("checkpoints\n")
    assert built() == [".dockerignore", ".gitignore", "dist/x.whl", "train.py"]
    assert paths(tmp_path) == [".dockerignore", ".gitignore", "train.py"]


@contextmanager
def somebody_elses() -> Iterator[Path]:
    """An empty folder, in which no folder is readable that may not be read by everybody; root may read any."""
    # Not pytest's folder: its parents are this user's alone.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        own = os.geteuid()
        if own == 0:
            os.seteuid(NOBODY)
        try:
            yield folder
        finally:
            os.seteuid(own)


def test_a_folder_that_cannot_be_read_is_named_and_not_even_tried_if_it_is_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    with somebody_elses() as folder:
        write(folder, "train.py", "data/secret")
        data = folder / "data"
        data.chmod(0)
        try:
            with pytest.raises(UsageError, match=rf"^{data}\S* cannot be read: Permission denied$"):
                paths(folder)
            (folder / ".gitignore").write_text("data\n")
            assert paths(folder) == [".gitignore", "train.py"]
        finally:
            data.chmod(0o755)


def test_links_are_sent_as_links_and_modes_are_kept(tmp_path: Path) -> None:
    write(tmp_path, "run.sh")
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "link").symlink_to("run.sh")
    link, script = list_code(tmp_path)
    assert (link.path, link.link) == ("link", "run.sh")
    assert (script.mode, script.size, len(script.sha256)) == (0o755, 6, 64)
