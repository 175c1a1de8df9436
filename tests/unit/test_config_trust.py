"""hvdcloud.yaml of a project that was cloned: what it may not decide about this machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from hvdcloud.config.file import load_config
from hvdcloud.config.model import Config
from hvdcloud.config.trust import HOSTS, SERVERS, google_server, unfit_folder, variable
from hvdcloud.errors import UsageError

EVIL = "http://203.0.113.7:8080"


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


@pytest.mark.parametrize("key", SERVERS)
def test_a_file_may_not_name_a_server_that_gets_credentials(file: Path, key: tuple[str, ...]) -> None:
    value = EVIL
    for part in reversed(key):
        value = f"{{{part}: {value}}}"
    error = refusal(file, f"name: digits\n{value[1:-1]}\n")
    assert error.message.startswith(f"{file}:2: {'.'.join(key)}: '{EVIL}' is not one of Google's servers")
    assert variable(key) in error.hint
    file.write_text("name: digits\n")
    config = load_config(file, environ={variable(key): EVIL})
    assert config.gce.endpoint == EVIL or config.image.remote.endpoint == EVIL


@pytest.mark.parametrize(
    "text",
    [
        "gce: {<<: {endpoint: URL}}",
        "gce: {<<: [{disk_gb: 20}, {endpoint: URL}]}",
        "gce: &a {<<: &b {endpoint: URL}, disk_gb: 20}",
        "image: {remote: &a {endpoint: URL}}\ngce: {<<: *a}",
        "gce: {endpoint: 'https://compute.googleapis.com', endpoint: URL}",
        "gce: {endpoint: URL, endpoint: 'https://compute.googleapis.com'}",
        "gce: {? !!str endpoint : URL}",
        "image: {remote: {<<: {endpoint: URL}}}",
        "image: {<<: {remote: {endpoint: URL}}}",
        "<<: {gce: {endpoint: URL}}",
    ],
)
def test_yaml_hides_no_server(file: Path, text: str) -> None:
    file.write_text(f"name: digits\n{text.replace('URL', EVIL)}\n")
    for environ in ({}, {"HVDCLOUD_GCE__DISK_GB": "30"}, {"HVDCLOUD_IMAGE__REMOTE__REGION": "global"}):
        with pytest.raises(UsageError):
            load_config(file, environ=environ)


def test_what_the_environment_says_takes_the_place_of_the_files_server(file: Path) -> None:
    file.write_text(f"name: digits\ngce: {{<<: {{endpoint: {EVIL}}}}}\n")
    mine = "http://127.0.0.1:9024"
    assert load_config(file, environ={"HVDCLOUD_GCE__ENDPOINT": mine}).gce.endpoint == mine
    assert load_config(file, environ={"HVDCLOUD_GCE": f"{{endpoint: '{mine}'}}"}).gce.endpoint == mine
    assert load_config(file, environ={"HVDCLOUD_GCE": "{disk_gb: 20}"}).gce.endpoint is None


@pytest.mark.parametrize(
    ("url", "is_google"),
    [
        ("https://compute.googleapis.com", True),
        ("https://us-central1-cloudbuild.googleapis.com/", True),
        ("https://compute-mine.p.googleapis.com", True),
        ("https://compute.us-east1.rep.googleapis.com", True),
        ("http://compute.googleapis.com", False),
        ("https://compute.googleapis.com.example.org", False),
        ("https://googleapis.com.example.org", False),
        ("https://examplegoogleapis.com", False),
        ("https://compute.googleapis.com@example.org", False),
        ("https://me:word@compute.googleapis.com", False),
        ("https://compute.googleapis.com:8443", False),
        ("https://example.org/compute.googleapis.com", False),
        ("https://example.org#.googleapis.com", False),
        ("https://example.org?.googleapis.com", False),
        ("https://example.org\\.googleapis.com", False),
        ("https://example.org/.googleapis.com", False),
        ("https://compute.googleapis.com\n", False),
        ("https://compute.googleapis.com\t", False),
        ("https://c\u043empute.googleapis.com", False),
        ("https://compute.googleapis.com/other", False),
        # Anyone's objects are at these.
        ("https://storage.googleapis.com", False),
        ("https://anyone.storage.googleapis.com", False),
        ("https://commondatastorage.googleapis.com", False),
        ("http://127.0.0.1:8080", False),
        ("https://localhost", False),
        ("${ENDPOINT}", False),
        ("", False),
    ],
)
def test_only_googles_own_servers_are_googles(url: str, *, is_google: bool) -> None:
    assert google_server(url) is is_google


def test_every_key_that_names_a_server_is_looked_at() -> None:
    def keys(section: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        for name, field in section.model_fields.items():
            inner = field.annotation
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from keys(inner, (*above, name))
            elif any(word in name for word in ("endpoint", "url", "server", "host", "proxy", "index")):
                yield (*above, name)

    assert set(keys(Config)) == {*SERVERS, HOSTS}


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefghijk", "bcdefghijkl", strict=True)
)


@pytest.mark.parametrize(
    "text", [BOMB, "gce: &a {zones: *a}", "gce: &a [*a]", "gce: " + "[" * 5000, "gce: " + "[" * 5000 + "]" * 5000]
)
def test_a_file_that_unfolds_without_end_is_refused_at_once(file: Path, text: str) -> None:
    # Of this process: the machine may be busy with others.
    began = time.process_time()
    refusal(file, f"name: digits\n{text}\n")
    assert time.process_time() - began < 10


# --- folders that nodes write to -------------------------------------------------------------------------------------


def bucket_refusal(file: Path, folder: str) -> UsageError:
    return refusal(file, f"name: digits\ncheckpoints:\n  bucket: 'file://{folder}'\n")


@pytest.mark.parametrize(
    "folder",
    [
        "HOME/.ssh", "HOME", "HOME/..", "HOME/../..", "HOME/.ssh/..", "HOME/project/../.ssh", "HOME/.config/autostart",
        "HOME/%2essh", "HOME/link", "HOME/link/new", "/.", "/usr/..", "/tmp/a%00b", "/tmp/LONG",
        "/etc/systemd/system/x.service.d", "HOME/papers",
    ],
)  # fmt: skip
def test_a_file_may_not_give_nodes_a_folder_of_the_users(file: Path, home: Path, folder: str) -> None:
    (home / "papers").mkdir()
    (home / "papers" / "thesis.tex").write_text("mine\n")
    (home / "link").symlink_to(".ssh")
    error = bucket_refusal(file, folder.replace("HOME", str(home)).replace("LONG", 300 * "x"))
    assert f"{file}:3: checkpoints.bucket: " in error.message
    assert "nodes may change everything in it" in error.message
    assert "HVDCLOUD_CHECKPOINTS__BUCKET" in error.hint


def test_a_merged_bucket_is_looked_at_too(file: Path, home: Path) -> None:
    refusal(file, f"name: digits\ncheckpoints: {{<<: {{bucket: 'file://{home}/.ssh'}}}}\n")


def test_the_user_may_name_any_folder(file: Path, home: Path) -> None:
    file.write_text(f"name: digits\ncheckpoints: {{bucket: 'file://{home}/.ssh'}}\n")
    mine = (home / ".cache").as_uri()
    config = load_config(file, environ={"HVDCLOUD_CHECKPOINTS__BUCKET": mine})
    assert config.checkpoints.bucket == mine
    assert load_config(file, flags={"checkpoints.bucket": mine}, environ={}).checkpoints.bucket == mine


def test_an_empty_folder_a_new_one_and_a_bucket_of_an_earlier_version_are_taken(home: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    marks = ("digits/20261121-101112-abcdef/.hvdcloud", ".hvdcloud-tmp")
    for number, mark in enumerate(marks):
        for bucket in (tmp_path / f"bucket-{number}", home / ".local" / f"bucket-{number}"):
            (bucket / mark).mkdir(parents=True)
            (bucket / "README").write_text("mine\n")
            assert unfit_folder(bucket) is None
    assert unfit_folder(tmp_path / "empty") is None
    assert unfit_folder(tmp_path / "new" / "deeper") is None
    assert unfit_folder(home / "checkpoints") is None


def test_a_planted_link_makes_no_bucket_of_a_folder(home: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (home / "papers").mkdir()
    (home / "papers" / ".hvdcloud-tmp").symlink_to(tmp_path / "elsewhere")
    assert unfit_folder(home / "papers") is not None


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
