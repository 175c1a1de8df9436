"""Folders with data, as the local provider mounts them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from hvdcloud.config.data import DataConfig
from hvdcloud.errors import UsageError
from hvdcloud.providers.local import doctor, requests
from tests.support.gce_samples import SPEC


def with_data(sources: Mapping[str, str]) -> dict[str, DataConfig]:
    return {name: DataConfig(source=source) for name, source in sources.items()}


def test_folders_are_mounted_read_only_and_buckets_are_not(tmp_path: Path) -> None:
    sets = with_data({"val": "file:///data/val%20set", "train": "gs://bucket/train"})
    spec = replace(SPEC, bucket=tmp_path.as_uri(), data=sets)
    for request in requests.container_requests(spec, [0, 3]):
        assert request.body["read_only_mounts"] == {"/var/lib/hvdcloud/data/val": "/data/val set"}
        assert request.body["mounts"] == {str(tmp_path): "/var/lib/hvdcloud/bucket"}


def test_without_folders_the_request_is_as_before(tmp_path: Path) -> None:
    spec = replace(SPEC, bucket=tmp_path.as_uri())
    [bare] = requests.container_requests(spec, [0])
    [with_bucket] = requests.container_requests(replace(spec, data=with_data({"train": "gs://bucket/train"})), [0])
    assert bare == with_bucket
    assert "read_only_mounts" not in bare.body


def test_a_folder_that_cannot_be_mounted_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "here").mkdir()
    sets = with_data({name: (tmp_path / name).as_uri() for name in ("here", "gone", "file")})
    found = doctor.data_folders(replace(SPEC, data=sets))
    assert (found.message, found.hint, found.error) == (
        f"the folder of data set gone, {tmp_path}/gone, does not exist",
        "put the files there, or name another folder in data.gone",
        UsageError,
    )
    assert found.details == (
        f"the folder of data set file, {tmp_path}/file, is no folder; "
        "put the files there, or name another folder in data.file"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_this_user_cannot_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir(mode=0o000)
    sets = with_data({"private": (tmp_path / "private").as_uri()})
    assert doctor.data_folders(replace(SPEC, data=sets)).message.endswith("is not this user's to read")
