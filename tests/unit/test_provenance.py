"""What an image's labels say of where it comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

import hvdcloud
from hvdcloud.cluster import model
from hvdcloud.image.plan.provenance import public_url, source_labels, version_labels
from tests.support.ci_environments import GITHUB


@pytest.mark.parametrize(
    ("remote", "public"),
    [
        ("https://github.com/lab/digits", "https://github.com/lab/digits"),
        ("https://x-access-token:ghs_secret@github.com/lab/digits.git", "https://github.com/lab/digits.git"),
        ("https://ghp_secret@github.com/lab/digits", "https://github.com/lab/digits"),
        ("https://git.lab:8443/lab/digits?private_token=secret#x", "https://git.lab:8443/lab/digits"),
        ("git@github.com:lab/digits.git", "ssh://git@github.com/lab/digits.git"),
        ("git@github.com:/lab/digits.git", "ssh://git@github.com/lab/digits.git"),
        ("ssh://git:secret@git.lab:2222/digits.git", "ssh://git@git.lab:2222/digits.git"),
        ("https://user:secret@[2001:db8::1]:443/digits", "https://[2001:db8::1]:443/digits"),
        ("/home/someone/digits.git", None),
        ("../digits.git", None),
        ("file:///home/someone/digits.git", None),
        ("https://git.lab:port/digits", None),
        ("", None),
    ],
)
def test_a_remote_is_shown_without_secrets_and_without_paths_of_this_machine(remote: str, public: str | None) -> None:
    assert public_url(remote) == public


def test_versions_are_labels_and_what_has_none_is_left_out() -> None:
    assert version_labels({"torch": "2.13.0+cpu", "horovod": "0.28.1", "cuda": "", "nccl": None}) == {
        "hvdcloud-image-builder": f"hvdcloud {hvdcloud.__version__}",
        "hvdcloud-image-torch": "2.13.0+cpu",
        "hvdcloud-image-horovod": "0.28.1",
    }


def test_no_label_of_an_image_marks_an_object_of_a_cluster() -> None:
    clusters = {value for name, value in vars(model).items() if name.startswith("LABEL_")}
    names = ("cluster", "owner", "node", "nodes", "torch", "cuda")
    ours = {*version_labels(dict.fromkeys(names, "1")), *source_labels(Path(), GITHUB)}
    assert clusters >= {"managed-by", "hvdcloud-cluster"}
    assert clusters.isdisjoint(ours)
