"""What ignore files exclude, beside the real git and the real `docker build`.

HVDCLOUD_SEED=N makes the trees of another seed.
"""

from __future__ import annotations

import io
import os
import random
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from hvdcloud.errors import UsageError
from hvdcloud.project_files import build_files, code_files
from tests.support.http_server import Asked, Reply, answering

TREES = 150
SEED = int(os.environ.get("HVDCLOUD_SEED", "1"))
FOLDERS = ("data", "src", "src.d", "wandb", "a b", "[x]")
FILES = ("a.py", "b.log", "data", "c.bin", "é.txt", "#d", "!e", "f ", os.fsdecode(b"\xe9.log"))
PATTERNS = ("*", "**", "*.log", "d*", "?.py", "[ab].*", "[!a]*", "[^a]*", "s*c", "*a", "x", "\\!e", "\\#d")
WORDS = (*FOLDERS, *FILES, *PATTERNS)
IDENTITY = ("-c", "user.name=x", "-c", "user.email=x@lab", "-c", "init.defaultBranch=main")


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *IDENTITY, *arguments], cwd=folder, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return os.fsdecode(done.stdout)


def make_repository(folder: Path) -> None:
    """`git init`, without a process."""
    for name in ("objects", "refs", "info"):
        (folder / ".git" / name).mkdir(parents=True)
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")


def listed_by_git(folder: Path) -> set[str]:
    found = set()
    for name in git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")[:-1]:
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            found |= {f"{name.rstrip('/')}/{each}" for each in listed_by_git(path)}
        elif os.path.lexists(path):
            found.add(name)
    return found


def sent(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in code_files(folder)}


def built(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in build_files(folder) if path.is_symlink() or path.is_file()}


def random_tree(folder: Path, rng: random.Random, *, depth: int = 3) -> None:
    folder.mkdir(exist_ok=True)
    for name in rng.sample(FILES, rng.randrange(1, 6)):
        if not os.path.lexists(folder / name):
            (folder / name).write_text("x")
    for name in rng.sample(FOLDERS, rng.randrange(3)) if depth else ():
        if not os.path.lexists(folder / name):
            random_tree(folder / name, rng, depth=depth - 1)


def random_lines(rng: random.Random) -> bytes:
    lines = []
    for _ in range(rng.randrange(1, 6)):
        line = "/".join(rng.choice(WORDS) for _ in range(rng.choice((1, 1, 2, 3))))
        line = rng.choice(("", "", "/", "**/")) + line + rng.choice(("", "", "/", "/**", " "))
        lines.append(rng.choice(("", "", "!")) + line)
    text = rng.choice(("\n", "\n", "\r\n")).join(lines) + rng.choice(("", "\n"))
    return rng.choice((b"", b"", b"\xef\xbb\xbf")) + os.fsencode(text)


def random_repository(top: Path, rng: random.Random) -> Path:
    """A project: a folder of a repository, a repository, or neither, with repositories in it or not."""
    kind = rng.choice(("above", "repository", "neither"))
    project = top / "lab" / "exp" if kind == "above" else top
    project.mkdir(parents=True)
    random_tree(project, rng)
    folders = [folder for folder in project.rglob("*") if folder.is_dir()]
    for folder in (project, project.parent if kind == "above" else project, *folders):
        if rng.random() < 0.4:
            (folder / ".gitignore").write_bytes(random_lines(rng))
    if kind == "neither":
        return project
    make_repository(top)
    if rng.random() < 0.3:
        (top / ".git" / "info" / "exclude").write_bytes(random_lines(rng))
    if rng.random() < 0.3:
        (top / "excludes").write_bytes(random_lines(rng))
        (top / ".git" / "config").write_text(f"[core]\nexcludesFile = {top}/excludes\n")
    if folders and rng.random() < 0.3:
        make_repository(rng.choice(folders))
    elif rng.random() < 0.5:
        tracked = [str(path) for path in project.rglob("*") if path.is_file() and ".git" not in path.parts]
        git(top, "add", "--force", "--", *rng.sample(tracked, min(3, len(tracked))))
        Path(tracked[0]).unlink(missing_ok=True)
    return project


def test_what_git_does_not_list_is_not_sent_and_all_else_is(tmp_path: Path) -> None:
    for number in range(TREES):
        top = tmp_path / "tree"
        project = random_repository(top, random.Random(f"{SEED}.{number}"))
        ours = sent(project)
        if not (top / ".git").exists():
            make_repository(top)
        theirs = {name for name in listed_by_git(project) if "__pycache__" not in name}
        files = "".join(f"\n{file}: {file.read_bytes()!r}" for file in top.rglob(".gitignore"))
        assert ours == theirs, f"seed {SEED}, tree {number}: ours {ours - theirs}, git's {theirs - ours}{files}"
        shutil.rmtree(top)


@contextmanager
def builder() -> Iterator[tuple[dict[str, bytes], dict[str, str]]]:
    """As much of an engine as `docker build` needs: the build contexts by tag, and the environment for docker."""
    contexts: dict[str, bytes] = {}

    def answer(asked: Asked) -> Reply:
        headers = {"Api-Version": "1.41", "Builder-Version": "1"}
        if asked.method != "POST":
            return Reply(headers=headers)
        contexts[parse_qs(asked.query)["t"][0]] = asked.body
        return Reply({"stream": "done"}, headers=headers)

    with answering(answer) as url:
        host = url.replace("http", "tcp")
        yield contexts, {**os.environ, "DOCKER_HOST": host, "DOCKER_BUILDKIT": "0", "DOCKER_CONTEXT": ""}


def docker_tree(root: Path, number: int) -> Path:
    rng = random.Random(f"{SEED}.{number}")
    folder = root / str(number)
    random_tree(folder, rng)
    (folder / "Dockerfile").write_text("FROM scratch\n")
    (folder / ".dockerignore").write_bytes(random_lines(rng))
    return folder


def modern_docker() -> str:
    """A docker command of 23 or later: what older ones do with lines that begin with ! differs."""
    for folder in os.environ["PATH"].split(os.pathsep):
        if docker := shutil.which("docker", path=folder):
            said = subprocess.run([docker, "--version"], capture_output=True, text=True, check=True).stdout
            if (version := re.search(r"version (\d+)", said)) and int(version[1]) >= 23:
                return docker
    pytest.skip("there is no docker command of 23 or later")


def test_what_docker_build_does_not_send_is_not_sent_and_all_else_is(tmp_path: Path) -> None:
    docker = modern_docker()
    with builder() as (contexts, environment), ThreadPoolExecutor(4) as threads:

        def build(number: int) -> None:
            folder = docker_tree(tmp_path, number)
            command = [docker, "build", "-q", "-t", f"t{number}", str(folder)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            lines = (folder / ".dockerignore").read_bytes()
            what = f"seed {SEED}, tree {number}: {lines!r}: {done.stderr}"
            context = contexts.get(f"t{number}")
            if context is None:
                assert done.returncode != 0, what
                with pytest.raises(UsageError, match="cannot be used"):
                    built(folder)
                return
            with tarfile.open(fileobj=io.BytesIO(context), errors="surrogateescape") as tar:
                members = {member.name: member.isdir() for member in tar}
            theirs = {name for name, is_folder in members.items() if not is_folder}
            ours = built(folder)
            # This builder does not look into an excluded folder for a line with ! and wildcards; BuildKit does.
            unseen = {
                name
                for name in ours - theirs
                if b"!" in lines and any(str(above) not in members for above in Path(name).parents if above.name)
            }
            own = {"Dockerfile", ".dockerignore"}
            assert ours - unseen - own == theirs - own, what + f" ours {ours - theirs - own}, docker's {theirs - ours}"

        list(threads.map(build, range(TREES)))
