"""What `setup` asks Terraform for, and what it writes into hvdcloud.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hvdcloud.config.model import Config
from hvdcloud.errors import UsageError
from hvdcloud.setup.terraform import find_terraform
from hvdcloud.setup.variables import choose_variables, user_variables

A100 = {"machine_type": "a2-highgpu-1g"}


def variables(
    before: dict[str, Any] | None = None, *, gce: dict[str, Any] | None = None, name: str = "digits", **said: Any
) -> Any:
    config = Config.model_validate({"name": name, "gce": gce or {}})
    return choose_variables(config, "lab-42", before or {}, **said)


def test_without_zones_the_regions_are_those_of_the_continent_that_have_the_gpu() -> None:
    assert variables(gce=A100)["other_regions"] == {
        "us-east1": "10.10.16.0/20",
        "us-west1": "10.10.32.0/20",
        "us-west3": "10.10.48.0/20",
        "us-west4": "10.10.64.0/20",
    }
    t4 = {"gpu": {"type": "nvidia-tesla-t4"}}
    found = variables(gce=t4)
    assert "northamerica-northeast1" in found["other_regions"]
    assert not any(region.startswith(("europe", "asia", "southamerica")) for region in found["other_regions"])
    zones = {**t4, "zones": ["europe-west4-a", "us-east1-b"]}
    assert variables(gce=zones)["other_regions"] == {"us-east1": "10.10.16.0/20"}
    assert variables(gce={"gpu": {"type": "unheard-of"}})["other_regions"] == {}


def test_a_region_keeps_its_range_and_the_bucket_its_region() -> None:
    later = variables(
        variables(regions=["us-west1", "us-east1", "us-west4"]), regions=["us-east4", "us-west4", "us-west1"]
    )
    assert later["region"] == "us-west1"
    assert later["other_regions"] == {"us-east4": "10.10.16.0/20", "us-west4": "10.10.32.0/20"}


def test_each_clusters_nodes_may_delete_themselves() -> None:
    assert variables(variables(), name="words")["self_delete"] == ["digits", "words"]


def test_the_users_own_variables_are_a_file_of_the_project(tmp_path: Path) -> None:
    assert user_variables(tmp_path) is None
    file = tmp_path / "hvdcloud.tfvars"
    file.write_text("nat = true\n")
    assert user_variables(tmp_path) == file
    file.unlink()
    (outside := tmp_path.parent / "outside.tfvars").write_text("nat = true\n")
    for target in (outside, tmp_path / "nowhere"):
        file.symlink_to(target)
        with pytest.raises(UsageError, match="is not a file of the project's folder"):
            user_variables(tmp_path)
        file.unlink()


def test_terraform_is_found_on_path_and_opentofu_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="no terraform on PATH"):
        find_terraform()
    for name in ("tofu", "terraform"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
        assert find_terraform() == tmp_path / name
