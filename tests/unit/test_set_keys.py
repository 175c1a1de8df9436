"""Keys set in a file that a person wrote: its comments, order and quotes stay."""

from __future__ import annotations

import difflib
import stat
from importlib.resources import files
from pathlib import Path

import pytest
import yaml

from hvdcloud.config.file import load_config
from hvdcloud.config.set_keys import Change, edit_file, set_keys
from hvdcloud.errors import UsageError

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

EXPECTED = """\
# One experiment.
name: digits    # the cluster
provider: gce       # local or gce
nodes: 2

image:
  framework: 'torch'    # single quotes
  repository: us-central1-docker.pkg.dev/lab-1/hvdcloud/digits # where it is pushed
  requirements: "requirements.txt"

# What runs.
run:
  command: >-
    python train.py
    --epochs 3
  env: {A: "1", B: '2'}
checkpoints:
  keep_every: 5s
  bucket: gs://lab-1-hvdcloud/digits # not yet

gce:
  # the lab's
  network: https://www.googleapis.com/compute/v1/projects/lab-1/global/networks/hvdcloud
  project: lab-1
  machine_type: n1-standard-2   # small
  gpu: {type: nvidia-tesla-t4, count: 1}
  zones:
  - us-central1-a
  - us-central1-b   # the second

  # The end of it.
"""


def changed_lines(before: str, after: str) -> list[str]:
    return [line for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line[0] in "+-"]


def test_comments_order_and_quotes_stay() -> None:
    text, changes = set_keys(WRITTEN, GCE)
    assert text == EXPECTED
    assert [change.key for change in changes] == list(GCE)
    assert changes[0] == Change(key="provider", old="local", new="gce")
    assert changes[1].old is None


def test_a_second_time_nothing_changes() -> None:
    assert set_keys(EXPECTED, GCE) == (EXPECTED, [])


def test_of_a_template_only_the_keys_change() -> None:
    """Golden: what `setup` makes of the project that `init` wrote."""
    before = (files("hvdcloud") / "templates" / "torch" / "hvdcloud.yaml").read_text(encoding="utf-8")
    after, _ = set_keys(before, GCE)
    assert changed_lines(before, after) == [
        "- provider: local                    # local: containers on this machine · gce: Compute Engine",
        "+ provider: gce                      # local: containers on this machine · gce: Compute Engine",
        "+   repository: us-central1-docker.pkg.dev/lab-1/hvdcloud/digits",
        "+   bucket: gs://lab-1-hvdcloud/digits",
        "+   network: https://www.googleapis.com/compute/v1/projects/lab-1/global/networks/hvdcloud",
        "+   project: lab-1",
    ]


@pytest.mark.parametrize("template", ["torch", "keras"])
def test_what_setup_writes_is_read_back(template: str, tmp_path: Path) -> None:
    file = tmp_path / "hvdcloud.yaml"
    file.write_text((files("hvdcloud") / "templates" / template / "hvdcloud.yaml").read_text(encoding="utf-8"))
    edit_file(file, GCE)
    config = load_config(file, environ={})
    assert (config.provider, config.gce.project) == ("gce", "lab-1")
    assert config.checkpoints.bucket == GCE["checkpoints.bucket"]
    assert config.image.repository == GCE["image.repository"]


KINDS = (
    "a: 0123\nb: 3.10\nc: yes\nd: 12:30:00\ne: 1e3\nf: 1_000\ng: 0o17\nh: 0.50\ni: 2024-01-02\nj: 0x1F\nk: .5\n"
    "l: null\nm: =\nn: \"x\"\no: ''\n"
)


@pytest.mark.parametrize(
    ("before", "values", "after"),
    [
        ("", {"a.b": "x"}, "a:\n  b: x\n"),
        ("# only a comment\n", {"a": "x"}, "# only a comment\na: x\n"),
        ("name: x", {"a": "y"}, "name: x\na: y\n"),
        ("name: x", {"a.b": "y"}, "name: x\na:\n  b: y\n"),
        ("name: x\ngce:\n", {"gce.a": "y"}, "name: x\ngce:\n  a: y\n"),
        ("name: x\ngce: null  # later\nz: 1\n", {"gce.a": "y"}, "name: x\ngce:       # later\n  a: y\nz: 1\n"),
        ("name: x\ngce: {}\n", {"gce.a": "y"}, "name: x\ngce:\n  a: y\n"),
        ("gce: {a: 1}\n", {"gce.b": "us:x", "gce.a": "2"}, "gce: {b: us:x, a: '2'}\n"),
        ("a: 'it''s'\n", {"a": "b"}, "a: 'b'\n"),
        ("a: b\n", {"a": "it's: # x"}, 'a: "it\'s: # x"\n'),
        ("a: b\n", {"a": "true"}, "a: 'true'\n"),
        (KINDS, {"z": "y"}, f"{KINDS}z: y\n"),
        ("a: 1\r\nb:  # two\r\n  c: 2\r\n# end\r\n", {"b.d": "x"},
         "a: 1\r\nb:  # two\r\n  d: x\r\n  c: 2\r\n# end\r\n"),
        ("b:\n  c: |\n    x\n    y\n\nz: 1\n", {"b.d": "w"}, "b:\n  d: w\n  c: |\n    x\n    y\n\nz: 1\n"),
        ("---\nname: x\n", {"name": "y"}, "---\nname: y\n"),
        ("b:\n  c: 1\n  # d: PLACE\n\nz: 1\n", {"b.d": "w"}, "b:\n  d: w\n  c: 1\n  # d: PLACE\n\nz: 1\n"),
        ("b:\n  c:\n    - x   # one\n    - y\n", {"a": "w"}, "b:\n  c:\n    - x   # one\n    - y\na: w\n"),
        ("b:\n    c: 1  # one\n    e:\n        f: 2\n", {"b.d": "w"},
         "b:\n    d: w\n    c: 1  # one\n    e:\n        f: 2\n"),
        ("b: &one x\nz: *one\n", {"z": "w"}, "b: &one x\nz: w\n"),
        ("b: &one x\nz: *one\n", {"b": "w"}, "b: w\nz: &one x\n"),
        ("x: &x {c: 1}\nb:\n  <<: *x\n  e: 1\n", {"b.d": "w"}, "x: &x {c: 1}\nb:\n  d: w\n  <<: *x\n  e: 1\n"),
        ("base: &base {c: 1}\nb:\n  <<: *base\n", {"b.c": "w"}, "base: &base {c: 1}\nb:\n  <<: *base\n  c: w\n"),
        ("b: &shared\n  c: 1\nz: *shared\n", {"z.d": "w"}, None),
        ("b: &shared\n  c: 1\nz: *shared\n", {"b.d": "w"}, None),
        ("b: [1]\n", {"b.c": "w"}, None),
        ("b: word\n", {"b.c": "w"}, None),
    ],
)  # fmt: skip
def test_ways_of_writing_it(before: str, values: dict[str, str], after: str | None) -> None:
    """None: it is refused, with the keys to set by hand; nothing is guessed."""
    if after is None:
        with pytest.raises(UsageError) as caught:
            set_keys(before, values)
        assert "by hand" in caught.value.hint
        assert next(iter(values)) in caught.value.details
        return
    text, changes = set_keys(before, values)
    assert text == after
    assert {change.key for change in changes} == set(values)
    assert set_keys(text, values) == (text, [])


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
