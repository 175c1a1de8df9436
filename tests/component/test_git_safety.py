"""Nothing that a project's repository configures runs on the laptop."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from hvdcloud.errors import UsageError
from hvdcloud.project_files import code_files, excluding_line

CONFIG = """\
[core]
    fsmonitor = {spy} fsmonitor
    hooksPath = {hooks}
    pager = {spy} pager
    editor = {spy} editor
    sshCommand = {spy} ssh
    alternateRefsCommand = {spy} refs
[pager]
    status = {spy} pager
    ls-files = {spy} pager
[alias]
    ls-files = !{spy} alias
    status = !{spy} alias
[filter "evil=x"]
    clean = {spy} clean
    smudge = {spy} smudge
    required = true
[filter "process"]
    process = {spy} process
[diff]
    external = {spy} diff
[diff "evil"]
    command = {spy} command
    textconv = {spy} textconv
[include]
    path = more
[extensions]
    partialClone = origin
[remote "origin"]
    url = ext::{spy} transport
    promisor = true
[protocol "ext"]
    allow = always
"""


def git(folder: Path, *arguments: str) -> None:
    options = ("-c", "user.name=x", "-c", "user.email=x@lab", "-c", "init.defaultBranch=main")
    subprocess.run(["git", *options, *arguments], cwd=folder, check=True, capture_output=True)


def arm(store: Path, spy: Path) -> None:
    """Have a repository name the spy wherever git may start a program."""
    hooks = store / "evil-hooks"
    hooks.mkdir()
    for folder in (hooks, store / "hooks"):
        folder.mkdir(exist_ok=True)
        for name in ("post-index-change", "post-checkout", "pre-commit", "reference-transaction", "fsmonitor-watchman"):
            shutil.copy(spy, folder / name)
    (store / "config").write_text(CONFIG.format(spy=spy, hooks=hooks))
    (store / "more").write_text(f'[core]\nfsmonitor = {spy} included\n[filter "more"]\nclean = {spy} more\n')


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "trace"


@pytest.fixture
def spy(tmp_path: Path, trace: Path) -> Path:
    program = tmp_path / "spy"
    program.write_text(f'#!/bin/sh\necho "$0 $*" >> {trace}\ncat\n')
    program.chmod(0o755)
    return program


@pytest.fixture
def project(tmp_path: Path, spy: Path) -> Path:
    folder = tmp_path / "project"
    for name, attribute in (("a", "filter=evil=x"), ("b", "filter=process"), ("c", "filter=more diff=evil")):
        (folder / name).mkdir(parents=True)
        (folder / name / "train.py").write_text("1\n")
        (folder / name / ".gitattributes").write_text(f"*.py {attribute}\n")
    (folder / ".gitignore").write_text("*.log\n")
    (folder / "x.log").write_text("")
    for each in (folder, folder / "sub"):
        each.mkdir(exist_ok=True)
        git(each, "init", "--quiet")
        (each / "net.py").write_text("1\n")
        git(each, "add", "--all", ".")
        git(each, "commit", "--quiet", "-m", "first")
        if each == folder:
            continue
        git(folder, "add", "sub")
        git(folder, "commit", "--quiet", "-m", "second")
    git(folder, "clone", "--quiet", "--bare", ".", str(folder / "bare.git"))
    for store in (folder / ".git", folder / "sub" / ".git", folder / "bare.git"):
        arm(store, spy)
    for path in folder.rglob("*.py"):
        # Git compares what seems to have changed, for which it starts filters.
        path.write_text("2\n")
    return folder


def test_no_program_of_a_repository_is_started(project: Path, trace: Path) -> None:
    sent = {path.relative_to(project).as_posix() for path in code_files(project)}
    assert {"a/train.py", "sub/net.py", "bare.git/HEAD"} <= sent
    assert "x.log" not in sent
    assert excluding_line(project, "x.log") == "line 1 of .gitignore (*.log)"
    assert not trace.exists(), trace.read_text()


def test_the_programs_are_those_that_git_alone_starts(project: Path, trace: Path) -> None:
    subprocess.run(["git", "status"], cwd=project, capture_output=True, check=False)
    said = trace.read_text()
    for name in ("spy included", "spy clean", "spy process", "spy more", "post-index-change"):
        assert name in said


def test_a_project_that_is_a_bare_repository_is_not_one_for_us(project: Path, trace: Path) -> None:
    bare = project / "bare.git"
    with (bare / "config").open("a") as config:
        config.write(f"[core]\nbare = false\nworktree = {bare}\n")
    (bare / ".gitignore").write_text("x\n")
    (bare / "x").write_text("")
    assert bare / "HEAD" in code_files(bare)
    assert bare / "x" not in code_files(bare)
    alone = project.parent / "alone"
    shutil.move(bare, alone)
    assert {path.name for path in code_files(alone)} >= {"HEAD", "config"}
    assert alone / "x" not in code_files(alone)
    assert not trace.exists(), trace.read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder of somebody else")
def test_a_repository_of_somebody_else_is_refused_in_gits_own_words(project: Path) -> None:
    os.chown(project, 65534, 65534)
    os.chown(project / ".git", 65534, 65534)
    with pytest.raises(UsageError, match="dubious ownership") as raised:
        list(code_files(project))
    assert "safe.directory" in raised.value.details


def test_variables_of_another_repository_do_not_count(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "nowhere"))
    assert project / "a" / "train.py" in code_files(project)
    assert project / "x.log" not in code_files(project)


def test_without_git_what_only_git_knows_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert list(code_files(tmp_path)) == [tmp_path / "train.py"]
    (tmp_path / ".gitignore").write_text("*.log\n")
    with pytest.raises(UsageError, match="is not on this machine's PATH") as raised:
        list(code_files(tmp_path))
    assert raised.value.hint == "install git"
