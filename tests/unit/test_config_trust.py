"""hvdcloud.yaml of a project that was cloned: what it may not decide about this machine."""

from __future__ import annotations

import gc
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from hvdcloud.config.model import Config
from hvdcloud.config.trust import BUCKET, HOSTS, variable
from hvdcloud.config.types import is_host_path
from hvdcloud.errors import UsageError
from hvdcloud.image.plan.steps import plan_image
from tests.support.configs import load_config


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project" / "hvdcloud.yaml"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "people" / "me"
    (folder / ".ssh").mkdir(parents=True)
    (folder / ".ssh" / "authorized_keys").write_text("mine\n")
    monkeypatch.setenv("HOME", str(folder))
    return folder


def refusal(file: Path, text: str, environ: dict[str, str] | None = None) -> UsageError:
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_config(file, environ=environ or {})
    return caught.value


# --- servers ---------------------------------------------------------------------------------------------------------


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefghijk", "bcdefghijkl", strict=True)
)


@pytest.mark.parametrize(
    "text",
    [BOMB, "gce: &a {zones: *a}", "gce: &a [*a]", "gce: " + "[" * 5000, "gce: " + "[" * 5000 + "]" * 5000],
    ids=["bomb", "mapping in itself", "list in itself", "deep and open", "deep"],
)
def test_a_file_that_unfolds_without_end_is_refused_at_once(file: Path, text: str) -> None:
    # Of this process: the machine may be busy with others.
    began = time.process_time()
    # Else what earlier tests have left may be finalized where the parser's recursion has used up the stack.
    gc.disable()
    try:
        refusal(file, f"name: digits\n{text}\n")
    finally:
        gc.enable()
    assert time.process_time() - began < 10


# --- files and folders of this machine -------------------------------------------------------------------------------


def sections(section: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], FieldInfo]]:
    """Every key of the schema; a data set is called `set`."""
    for name, field in section.model_fields.items():
        models = [each for each in (field.annotation, *get_args(field.annotation)) if isinstance(each, type)]
        inner = [each for each in models if issubclass(each, BaseModel)]
        part = (name, "set") if name == "data" else (name,)
        for each in inner:
            yield from sections(each, (*above, *part))
        if not inner:
            yield (*above, *part), field


PATHS = {key: field for key, field in sections(Config) if is_host_path(field)}
IN_NODES = {
    ("run", "command"), ("checkpoints", "keep_every"), ("checkpoints", "workspace_gb"), ("data", "set", "per_node")
}  # fmt: skip
"""Keys whose descriptions speak of files, and that name none of this machine."""
SPEAKS_OF_FILES = re.compile(
    r"\b(path|folder|director(y|ies)|files?|wheels|certificates|Dockerfile|DIR)\b", re.IGNORECASE
)


def test_no_key_names_a_server_that_gets_credentials() -> None:
    words = ("endpoint", "url", "server", "host", "proxy", "index")
    assert {key[:2] for key, _ in sections(Config) if any(word in key[-1] for word in words)} == {HOSTS}


def test_every_key_that_may_name_a_file_of_this_machine_has_the_type_that_says_so() -> None:
    speak = {key for key, field in sections(Config) if SPEAKS_OF_FILES.search(f"{key[-1]} {field.description}")}
    assert speak == {*PATHS, *IN_NODES}, "give a new key the type ProjectPath, or say here that it names no file"


def written(key: tuple[str, ...], value: str) -> str:
    text = json.dumps(value)
    for part in reversed(key):
        text = f"{{{part}: {text}}}"
    return f"name: digits\n{text[1:-1]}\n"


@pytest.fixture
def folders(file: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """What a path of the tests begins with; the project has links out of it."""
    project, base = file.parent, file.parent.parent
    for folder in (base / "OUT", base / "EMPTY", project / "in", project / ".git", project / ".hvdcloud-tmp"):
        folder.mkdir()
    (base / "OUT" / "file").write_text("mine\n")
    (project / "link").symlink_to(base / "OUT")
    (project / "to-file").symlink_to(base / "OUT" / "file")
    monkeypatch.chdir(project)
    return {"PROJECT": project, "OUT": base / "OUT", "EMPTY": base / "EMPTY", "HOME": home}


def at(folders: dict[str, Path], path: str) -> str:
    first, slash, rest = path.partition("/")
    return f"{folders.get(first, first)}{slash}{rest}"


OUTSIDE = [
    "OUT", "OUT/file", "EMPTY", "PROJECT/..", "PROJECT/../OUT", "PROJECT/in/..", "PROJECT/in/../../OUT", "/",
    "//", "/etc", "HOME", "HOME/.ssh", "HOME/new", "PROJECT/link", "PROJECT/link/new", "PROJECT/link/../OUT",
    "PROJECT/to-file", "/proc/self/cwd/link", "/proc/self/cwd/link/../OUT", "/proc/self/root",
    "/proc/self/root/etc", "/proc/self/fd/0", "/dev/zero", "PROJECT/.git", "PROJECT/.git/config", "PROJECT/a\0b",
    "/tmp/" + 300 * "x",
]  # fmt: skip


@pytest.mark.parametrize("key", PATHS, ids=".".join)
@pytest.mark.parametrize("path", [*OUTSIDE, "PROJECT/%2e%2e/OUT", "PROJECT/li%6ek", "OUT/%00"])
def test_a_file_names_nothing_outside_of_its_folder(
    file: Path, folders: dict[str, Path], key: tuple[str, ...], path: str
) -> None:
    full = at(folders, path)
    assert ".".join(key[:2]) in refusal(file, written(key, f"file://{full}")).message
    if key[0] == "image" and "%" not in path:
        assert ".".join(key) in refusal(file, written(key, full)).message


@pytest.mark.parametrize("key", [key for key in PATHS if key[0] == "image"], ids=".".join)
@pytest.mark.parametrize("path", ["..", "../OUT", "in/../../OUT", "link", "link/file", "to-file", ".git", "in/.."])
def test_a_relative_path_leads_nowhere_else(
    file: Path, folders: dict[str, Path], key: tuple[str, ...], path: str
) -> None:
    error = refusal(file, written(key, path))
    assert error.message.startswith(f"{file}:2: {'.'.join(key)}: {path} leads to {folders['PROJECT'].parent}")
    assert error.hint == f"move it there; or, if nodes and builds may read it: export {variable(key)}={path}"
    assert getattr(load_config(file, environ={variable(key): path}).image, key[-1]) == path


@pytest.mark.parametrize("path", ["PROJECT", "/proc/self/cwd"])
def test_ranks_do_not_get_the_project_whole(file: Path, folders: dict[str, Path], path: str) -> None:
    assert "data.set: " in refusal(file, written(("data", "set"), f"file://{at(folders, path)}")).message


@pytest.mark.parametrize(
    "text",
    [
        "checkpoints: {<<: {bucket: URL}}",
        "checkpoints: {<<: [{keep_every: 20}, {bucket: URL}]}",
        "checkpoints: &a {<<: &b {bucket: URL}, keep_every: 20}",
        "local: &a {bucket: URL}\ncheckpoints: {<<: *a}",
        "checkpoints: {bucket: gs://mine, bucket: URL}",
        "checkpoints: {bucket: URL, bucket: gs://mine}",
        "checkpoints: {? !!str bucket : URL}",
        "<<: {checkpoints: {bucket: URL}}",
        "data: {a: {<<: {source: URL}}}",
        "image: {<<: {find_links: URL}}",
    ],
)
def test_yaml_hides_no_folder(file: Path, folders: dict[str, Path], text: str) -> None:
    file.write_text(f"name: digits\n{text.replace('URL', 'file://' + at(folders, 'OUT/new'))}\n")
    for environ in ({}, {"HVDCLOUD_CHECKPOINTS__KEEP_EVERY": "30"}):
        with pytest.raises(UsageError):
            load_config(file, environ=environ)


def test_what_the_environment_says_takes_the_place_of_the_files_folder(
    file: Path, folders: dict[str, Path], tmp_path: Path
) -> None:
    file.write_text(f"name: digits\ncheckpoints: {{<<: {{bucket: '{'file://' + at(folders, 'OUT/new')}'}}}}\n")
    mine = f"file://{tmp_path}/mine"
    assert load_config(file, environ={"HVDCLOUD_CHECKPOINTS__BUCKET": mine}).checkpoints.bucket == mine
    assert load_config(file, environ={"HVDCLOUD_CHECKPOINTS": f"{{bucket: '{mine}'}}"}).checkpoints.bucket == mine
    assert load_config(file, environ={"HVDCLOUD_CHECKPOINTS": "{keep_every: 20}"}).checkpoints.bucket is None


@pytest.mark.parametrize("path", ["PROJECT", "PROJECT/in", "PROJECT/.hvdcloud-tmp", "PROJECT/..", "EMPTY", "OUT/new"])
def test_a_file_names_no_folder_as_bucket(file: Path, folders: dict[str, Path], path: str) -> None:
    assert "checkpoints.bucket" in refusal(file, written(BUCKET, f"file://{at(folders, path)}")).message


@pytest.mark.parametrize("key", [key for key in PATHS if key != BUCKET], ids=".".join)
def test_a_file_names_what_is_below_its_folder(file: Path, folders: dict[str, Path], key: tuple[str, ...]) -> None:
    for value in (f"file://{folders['PROJECT']}/in", *(["in", "in/new"] if key[0] == "image" else [])):
        file.write_text(written(key, value))
        load_config(file, environ={})


def test_a_fifo_or_a_device_of_the_project_is_no_wheel_and_no_certificate(file: Path) -> None:
    os.mkfifo(file.parent / "fifo.whl")
    for key in ("find_links", "ca_bundle", "requirements", "dockerfile"):
        file.write_text(f"name: digits\nimage: {{{key}: fifo.whl}}\n")
        config = load_config(file, environ={})
        with pytest.raises(UsageError, match=f"image.{key} names it"):
            plan_image(config.image, project_dir=file.parent)


@pytest.mark.parametrize("name", ["HVDCLOUD_CHECKPOINTS__BUCKET", "HVDCLOUD_CHECKPOINTS"])
def test_the_user_may_name_any_folder_as_bucket(file: Path, home: Path, name: str) -> None:
    error = refusal(file, f"name: digits\ncheckpoints:\n  bucket: 'file://{home}/a b;c'\n")
    assert error.message.startswith(f"{file}:3: checkpoints.bucket: file://{home}/a b;c is a folder of this machine")
    assert error.message.endswith("and nodes may change everything in it")
    assert f"export HVDCLOUD_CHECKPOINTS__BUCKET='file://{home}/a b;c'" in error.hint
    mine = (home / ".cache").as_uri()
    config = load_config(file, environ={name: mine if name.endswith("BUCKET") else f"{{bucket: '{mine}'}}"})
    assert config.checkpoints.bucket == mine
    assert load_config(file, flags={"checkpoints.bucket": mine}, environ={}).checkpoints.bucket == mine


def test_what_the_user_names_is_looked_up_once(file: Path, home: Path) -> None:
    (home / "link").symlink_to(home / ".ssh")
    named = {"HVDCLOUD_CHECKPOINTS__BUCKET": f"file://{home}/link/b", "HVDCLOUD_DATA__SET": f"file://{home}/link/set"}
    file.write_text("name: digits\n")
    config = load_config(file, environ=named)
    assert config.checkpoints.bucket == f"file://{home}/.ssh/b"
    assert config.data["set"].source == f"file://{home}/.ssh/set"
    named["HVDCLOUD_CHECKPOINTS__BUCKET"] = f"file://{home}/link/../b"
    assert "has '..' in it" in refusal(file, "name: digits\n", named).message


def test_a_project_that_is_reached_by_a_link_may_name_its_data(file: Path, tmp_path: Path) -> None:
    (file.parent / "data").mkdir()
    (tmp_path / "way").symlink_to(file.parent)
    file.write_text(f"name: digits\ndata: {{a: 'file://{tmp_path}/way/data', b: 'file://{file.parent}/data'}}\n")
    config = load_config(tmp_path / "way" / "hvdcloud.yaml", environ={})
    assert {each.folder for each in config.data.values()} == {file.parent / "data"}


# --- what errors show ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "run: {env: {TOKEN: [hunter2]}}",
        "run: {env: {TOKEN: {a: hunter2}}}",
        "run: {env: [TOKEN=hunter2]}",
        "run: {env: TOKEN=hunter2}",
        "run: {secrets: {TOKEN: hunter2}}",
        "run: {secrets: ['TOKEN=hunter2']}",
        "run: {secrets: [hunter-hunter2]}",
        "run: {secrets: [{TOKEN: hunter2}]}",
        "run: [env, TOKEN=hunter2]",
        "run: TOKEN=hunter2",
        "run: {evn: {TOKEN: hunter2}}",
    ],
)
def test_errors_show_no_value_of_the_environment_or_of_a_secret(file: Path, text: str) -> None:
    error = refusal(file, f"name: digits\n{text}\n")
    said = f"{error.message}\n{error.hint}\n{error.details}"
    assert "hunter2" not in said
    assert f"{file}:2: " in error.message
    assert "run" in error.message
