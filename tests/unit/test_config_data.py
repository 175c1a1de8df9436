"""`data:` in hvdcloud.yaml: how data sets are written, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from hvdcloud.config.data import DataConfig
from hvdcloud.errors import UsageError
from tests.support.configs import load_config


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    return tmp_path / "hvdcloud.yaml"


def data_of(file: Path, text: str, environ: Mapping[str, str] | None = None) -> dict[str, DataConfig]:
    file.write_text(f"name: digits\n{text}")
    return load_config(file, environ=environ or {}).data


def refusal(file: Path, text: str, environ: Mapping[str, str] | None = None) -> UsageError:
    with pytest.raises(UsageError) as caught:
        data_of(file, text, environ)
    return caught.value


def test_a_text_is_the_source_of_a_data_set(file: Path) -> None:
    data = data_of(
        file,
        "provider: gce\ndata:\n  train: gs://bucket/imagenet/train/\n"
        "  shards: {source: gs://bucket/records, per_node: shard}\n  val: {source: gs://bucket/val}\n",
    )
    assert [(name, each.source, each.per_node) for name, each in data.items()] == [
        ("train", "gs://bucket/imagenet/train", "all"),
        ("shards", "gs://bucket/records", "shard"),
        ("val", "gs://bucket/val", "all"),
    ]
    assert [each.folder for each in data.values()] == [None] * 3
    local = data_of(file, "", {"HVDCLOUD_DATA__VAL": "{source: file:///data/val%20set}"})
    assert local["val"].folder == Path("/data/val set")
    assert data_of(file, "nodes: 1\n") == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("data: [gs://bucket/a]", "data: it should be a valid dictionary"),
        ("data: {Train: gs://bucket/a}", "data.Train: 'Train' is not the name of a data set"),
        ("data: {train: bucket/a}", "data.train.source: 'bucket/a' is neither gs://BUCKET[/PREFIX] nor file:///DIR"),
        ("data: {train: gs://bucket/../other}", "is neither gs://BUCKET[/PREFIX] nor file:///DIR"),
        ("data: {train: file://data}", "needs an absolute folder"),
        ("data: {train: file:///data/../etc}", "has '..' in it"),
        ("data: {train: 3}", "data.train.source: '3' is neither gs://BUCKET[/PREFIX] nor file:///DIR"),
        ("data: {train: {per_node: all}}", "data.train.source is missing"),
        ("data: {train: {source: file:///data/a, per_node: shard}}", "per_node: shard needs a gs:// source"),
        ("checkpoints: {bucket: gs://bucket/runs}\ndata: {train: gs://bucket}", "checkpoints.bucket, gs://bucket/runs"),
        ("checkpoints: {bucket: gs://bucket/a}\ndata: {train: gs://bucket/a}", "take another prefix"),
    ],
)
def test_what_is_no_data_set_is_refused(file: Path, text: str, said: str) -> None:
    assert said in refusal(file, text).message


def test_a_folder_is_refused_with_gce_and_the_command_that_uploads_it(file: Path) -> None:
    named = {"HVDCLOUD_DATA__VAL": "file:///data/val"}
    known = refusal(file, "provider: gce\ncheckpoints: {bucket: gs://mine/runs}\n", named)
    said = "environment variable HVDCLOUD_DATA__VAL: data.val: file:///data/val is a folder of this machine, "
    assert known.message == f"{said}and nodes of provider gce do not have it"
    assert known.hint == "gcloud storage rsync --recursive /data/val gs://mine/data/val; name that as the source"


@pytest.mark.parametrize("provider", ["local", "ssh"])
def test_cloud_storage_is_refused_where_nodes_have_no_rights_in_it(file: Path, provider: str) -> None:
    written = f"provider: {provider}\n" + ("ssh: {hosts: [gpu1, gpu2]}\n" if provider == "ssh" else "")
    error = refusal(file, written + "checkpoints: {bucket: gs://mine/runs}\n")
    assert int(error.code) == 2
    assert "checkpoints.bucket: gs://mine/runs is in Cloud Storage, where only nodes of provider gce" in error.message
    assert error.hint.startswith("provider: gce; or leave it out")
    assert "gcloud storage rsync --recursive FOLDER gs://mine/runs" in error.hint
    error = refusal(file, written + "data: {train: gs://mine/train}\n")
    assert int(error.code) == 2
    assert "data.train: gs://mine/train is in Cloud Storage, " in error.message
    assert "provider: gce" in error.hint
    copy = "gcloud storage rsync --recursive gs://mine/train DIR, and data.train: file:///DIR"
    assert (copy in error.hint) == (provider == "local")


def test_a_folder_of_this_machine_is_refused_with_ssh(file: Path) -> None:
    error = refusal(file, "provider: ssh\nssh: {hosts: [gpu1]}\n", {"HVDCLOUD_DATA__VAL": "file:///data/val"})
    assert "file:///data/val is a folder of this machine, and nodes of provider ssh cannot read it" in error.message
    assert "the project's folder" in error.hint
