"""Keys set in a file that a person wrote: its comments, order and quotes stay."""

from __future__ import annotations

import stat
from importlib.resources import files
from pathlib import Path

import pytest
import yaml

from hvdcloud.config.set_keys import Change, edit_file, set_keys
from hvdcloud.errors import UsageError
from tests.support.configs import load_config

GCE = {
    "provider": "gce",
    "gce.project": "lab-1",
    "gce.network": "https://www.googleapis.com/compute/v1/projects/lab-1/global/networks/hvdcloud",
    "image.repository": "us-central1-docker.pkg.dev/lab-1/hvdcloud/digits",
    "checkpoints.bucket": "gs://lab-1-hvdcloud/digits",
}

WRITTEN = """\
# One experiment.
name: digits    # the cluster
provider: local     # local or gce
nodes: 2

image:
  framework: 'torch'    # single quotes
  repository: null      # where it is pushed
  requirements: "requirements.txt"

# What runs.
run:
  command: >-
    python train.py
    --epochs 3
  env: {A: "1", B: '2'}
checkpoints:
  keep_every: 5s
  bucket:   # not yet

gce:
  # the lab's
  machine_type: n1-standard-2   # small
  gpu: {type: nvidia-tesla-t4, count: 1}
  zones:
  - us-central1-a
  - us-central1-b   # the second

  # The end of it.
"""

CHANGED = {
    "provider: local     # local or gce": "provider: gce       # local or gce",
    "repository: null      #": "repository: us-central1-docker.pkg.dev/lab-1/hvdcloud/digits #",
    "bucket:   #": "bucket: gs://lab-1-hvdcloud/digits #",
    "  # the lab's\n": f"  # the lab's\n  network: {GCE['gce.network']}\n  project: lab-1\n",
}


def test_comments_order_and_quotes_stay() -> None:
    expected = WRITTEN
    for before, after in CHANGED.items():
        expected = expected.replace(before, after)
    text, changes = set_keys(WRITTEN, GCE)
    assert text == expected
    assert [change.key for change in changes] == list(GCE)
    assert changes[0] == Change(key="provider", old="local", new="gce")
    assert changes[1].old is None
    assert set_keys(text, GCE) == (text, [])


@pytest.mark.parametrize("template", ["torch", "keras"])
def test_what_setup_writes_is_read_back(template: str, tmp_path: Path) -> None:
    file = tmp_path / "hvdcloud.yaml"
    file.write_text((files("hvdcloud") / "templates" / template / "hvdcloud.yaml").read_text(encoding="utf-8"))
    edit_file(file, GCE)
    config = load_config(file, environ={})
    assert (config.provider, config.gce.project) == ("gce", "lab-1")
    assert config.checkpoints.bucket == GCE["checkpoints.bucket"]
    assert config.image.repository == GCE["image.repository"]


def test_json_is_yaml_too() -> None:
    before = '{\n  "name": "digits",\n  "gce": {\n    "project": "lab"\n  }\n}\n'
    after, _ = set_keys(before, {"provider": "gce", "gce.network": "n", "image.repository": "r"})
    assert yaml.safe_load(after) == {
        "name": "digits",
        "gce": {"project": "lab", "network": "n"},
        "provider": "gce",
        "image": {"repository": "r"},
    }


def test_what_is_no_mapping_or_no_yaml_is_refused() -> None:
    for text in ("- a\n", "a: [\n", "a: 1\na: 2\n", "a: 2024-13-45\n"):
        with pytest.raises(UsageError):
            set_keys(text, {"a": "b"})


def test_the_file_is_replaced_in_one_move_and_keeps_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "real.yaml"
    file.write_text("name: x\n")
    file.chmod(0o640)
    link = tmp_path / "hvdcloud.yaml"
    link.symlink_to("real.yaml")
    inode = file.stat().st_ino
    with file.open() as reader:  # A reader meanwhile still reads the whole old one.
        assert [change.key for change in edit_file(link, {"provider": "gce"})] == ["provider"]
        assert reader.read() == "name: x\n"
    assert link.is_symlink()
    assert yaml.safe_load(file.read_text()) == {"name": "x", "provider": "gce"}
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert file.stat().st_ino != inode
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hvdcloud.yaml", "real.yaml"]


def test_a_file_that_has_it_all_is_not_touched(tmp_path: Path) -> None:
    file = tmp_path / "hvdcloud.yaml"
    file.write_text("provider: gce\n")
    inode = file.stat().st_ino
    assert edit_file(file, {"provider": "gce"}) == []
    assert file.stat().st_ino == inode


def test_a_file_that_cannot_be_changed_is_an_error_with_the_keys(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be changed: No such file") as caught:
        edit_file(tmp_path / "none.yaml", {"gce.project": "lab-1"})
    assert caught.value.details == "gce.project: lab-1"
