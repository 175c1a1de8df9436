"""Keys set in a file that a person wrote: nothing but those keys changes."""

from __future__ import annotations

import difflib
import stat
from importlib.resources import files
from pathlib import Path

import pytest
import yaml

from hvdcloud.config.file import load_config
from hvdcloud.config.yaml_edit import Change, edit_file, set_keys
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
    framework: 'torch'    # four blanks, single quotes
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
    framework: 'torch'    # four blanks, single quotes
    repository: us-central1-docker.pkg.dev/lab-1/hvdcloud/digits  # where it is pushed
    requirements: "requirements.txt"

# What runs.
run:
  command: >-
    python train.py
    --epochs 3
  env: {A: "1", B: '2'}
checkpoints:
  keep_every: 5s
  bucket: gs://lab-1-hvdcloud/digits  # not yet

gce:
  # the lab's
  machine_type: n1-standard-2   # small
  gpu: {type: nvidia-tesla-t4, count: 1}
  zones:
  - us-central1-a
  - us-central1-b   # the second
  project: lab-1
  network: https://www.googleapis.com/compute/v1/projects/lab-1/global/networks/hvdcloud

  # The end of it.
"""


def changed_lines(before: str, after: str) -> list[str]:
    return [line for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line[0] in "+-"]


def test_comments_order_quotes_and_indentation_stay() -> None:
    text, changes = set_keys(WRITTEN, GCE)
    assert text == EXPECTED
    assert [change.key for change in changes] == list(GCE)
    assert changes[0] == Change(key="provider", old="local", new="gce")
    assert changes[1].old is None


def test_a_second_time_nothing_changes() -> None:
    assert set_keys(EXPECTED, GCE) == (EXPECTED, [])


def test_a_template_gets_its_commented_keys_in_their_places() -> None:
    """Golden: what `setup` makes of the project that `init` wrote."""
    before = (files("hvdcloud") / "templates" / "torch" / "hvdcloud.yaml").read_text(encoding="utf-8")
    after, _ = set_keys(before, GCE)
    assert changed_lines(before, after) == [
        "- provider: local                    # local: containers on this machine · gce: Compute Engine",
        "+ provider: gce                      # local: containers on this machine · gce: Compute Engine",
        "-   # repository: us-central1-docker.pkg.dev/PROJECT/hvdcloud/digits   # where it is pushed; gce needs one",
        "+   repository: us-central1-docker.pkg.dev/lab-1/hvdcloud/digits   # where it is pushed; gce needs one",
        "-   # bucket: gs://my-bucket/digits  # with gce; local keeps them in a folder of this machine",
        "+   bucket: gs://lab-1-hvdcloud/digits  # with gce; local keeps them in a folder of this machine",
        "+   project: lab-1",
        "+   network: https://www.googleapis.com/compute/v1/projects/lab-1/global/networks/hvdcloud",
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


@pytest.mark.parametrize(
    ("before", "values", "after"),
    [
        ("", {"a.b": 1}, "a:\n  b: 1\n"),
        ("# only a comment\n", {"a": "x"}, "# only a comment\na: x\n"),
        ("name: x", {"a": "y"}, "name: x\na: y\n"),
        ("name: x", {"a.b": "y"}, "name: x\n\na:\n  b: y\n"),
        ("name: x\ngce:\n", {"gce.a": "y"}, "name: x\ngce:\n  a: y\n"),
        ("name: x\ngce: null  # later\nz: 1\n", {"gce.a": "y"}, "name: x\ngce:  # later\n  a: y\nz: 1\n"),
        ("name: x\ngce: ~", {"gce.a": "y", "gce.b": "z"}, "name: x\ngce:\n  a: y\n  b: z\n"),
        ("name: x\ngce: {}\n", {"gce.a": "y"}, "name: x\ngce:\n  a: y\n"),
        ("gce: {a: 1}\n", {"gce.b": "us:x", "gce.a": "2"}, 'gce: {a: "2", b: us:x}\n'),
        ("gce: {a: 1, c: {}}\n", {"gce.c.d": "x"}, "gce: {a: 1, c: {d: x}}\n"),
        ("a: 'it''s'\n", {"a": "b"}, "a: b\n"),
        ("a: b\n", {"a": "it's: # x"}, 'a: "it\'s: # x"\n'),
        ("a: b\n", {"a": "true"}, 'a: "true"\n'),
        ("a: b\n", {"a": "1e3"}, "a: 1e3\n"),  # Text in YAML 1.1, which PyYAML reads.
        ("a: b\n", {"a": True}, "a: true\n"),
        ("a: 1\n", {"a": "0123"}, 'a: "0123"\n'),
        ("a: 3.1\n", {"a": "3.10"}, 'a: "3.10"\n'),
        ("a: 1\n", {"a": "12:30:00"}, 'a: "12:30:00"\n'),
        ("a: 1\n", {"a": "2024-13-45"}, 'a: "2024-13-45"\n'),
        ("a: =\nb: 2024-13-45\n", {"c": "null"}, 'a: =\nc: "null"\nb: 2024-13-45\n'),
        ("a: |\n  x\n  y\n\nb: 1\n", {"a.c": "x"}, None),
        ("a: 1\r\nb:\r\n  c: 2\r\n", {"b.d": "x"}, "a: 1\r\nb:\r\n  c: 2\r\n  d: x\r\n"),
        ("b:\n  c: |\n    x\n    y\n\nz: 1\n", {"b.d": "w"}, "b:\n  c: |\n    x\n    y\n  d: w\n\nz: 1\n"),
        ("---\nname: x\n...\n", {"name": "y"}, "---\nname: y\n...\n"),
        ("b:\n  # d: prose about d\n  c: 1\n", {"b.d": "w"}, "b:\n  # d: prose about d\n  c: 1\n  d: w\n"),
        ("b:\n  c: 1\nz:\n  # d: other\n  y: 1\n", {"b.d": "w"}, "b:\n  c: 1\n  d: w\nz:\n  # d: other\n  y: 1\n"),
        ("b:\n  c: 1\n  # d: PLACE\nz: 1\n", {"b.d": "w"}, "b:\n  c: 1\n  d: w\nz: 1\n"),
        ("b:\n  # d: PLACE\n  c: 1\n", {"b.d": "w"}, "b:\n  d: w\n  c: 1\n"),
        ("x: 1\nb:\n  # d: FIRST\n  # e: f\n  c: 1\n", {"b.d": "w"}, "x: 1\nb:\n  d: w\n  # e: f\n  c: 1\n"),
        ("b: &shared\n  c: 1\nz: *shared\n", {"z.d": "w"}, None),
        ("b: &shared\n  c: 1\nz: *shared\n", {"b.d": "w"}, None),
        ("b: &one x\nz: *one\n", {"z": "w"}, None),
        ("b: &one x\nz: *one\n", {"b": "w"}, None),
        ("b: &one {c: 1}\n", {"b.d": "w"}, "b: &one {c: 1, d: w}\n"),
        ("x: &x {c: 1}\nb:\n  <<: *x\n  e: 1\n", {"b.d": "w"}, "x: &x {c: 1}\nb:\n  <<: *x\n  e: 1\n  d: w\n"),
        ("base: &base {c: 1}\nb:\n  <<: *base\n", {"b.c": "w"}, "base: &base {c: 1}\nb:\n  <<: *base\n  c: w\n"),
        ("b: [1]\n", {"b.c": "w"}, None),
        ("b: word\n", {"b.c": "w"}, None),
        ("b: [1]\n", {"b": "w"}, None),
    ],
)  # fmt: skip
def test_ways_of_writing_it(before: str, values: dict[str, str | int], after: str | None) -> None:
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


@pytest.mark.parametrize(("before", "value"), [("a: '1'\n", 1), ("a: 0123\n", "0123"), ("a: true\n", True)])
def test_what_is_the_same_text_is_left_as_it_is(before: str, value: str | int) -> None:
    assert set_keys(before, {"a": value}) == (before, [])


def test_json_is_yaml_too() -> None:
    before = '{\n  "name": "digits",\n  "gce": {\n    "project": "lab"\n  }\n}\n'
    after, _ = set_keys(before, {"provider": "gce", "gce.network": "n", "image.repository": "r"})
    assert after == (
        '{\n  "name": "digits",\n  "gce": {\n    "project": "lab",\n    "network": "n"\n  },\n'
        '  "provider": "gce",\n  "image": {"repository": "r"}\n}\n'
    )


def test_what_is_no_mapping_or_no_yaml_is_refused() -> None:
    for text in ("- a\n", "a: [\n"):
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
