"""What an image's labels say of where it comes from."""

from __future__ import annotations

import hvdcloud
from hvdcloud.cluster import model
from hvdcloud.image.plan.provenance import version_labels


def test_versions_are_labels_and_what_has_none_is_left_out() -> None:
    assert version_labels({"torch": "2.13.0+cpu", "horovod": "0.28.1", "cuda": "", "nccl": None}) == {
        "hvdcloud-image-builder": f"hvdcloud {hvdcloud.__version__}",
        "hvdcloud-image-torch": "2.13.0+cpu",
        "hvdcloud-image-horovod": "0.28.1",
    }


def test_no_label_of_an_image_marks_an_object_of_a_cluster() -> None:
    clusters = {value for name, value in vars(model).items() if name.startswith("LABEL_")}
    names = ("cluster", "owner", "node", "nodes", "torch", "cuda")
    ours = version_labels(dict.fromkeys(names, "1"))
    assert clusters >= {"managed-by", "hvdcloud-cluster"}
    assert clusters.isdisjoint(ours)
