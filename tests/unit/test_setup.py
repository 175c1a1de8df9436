"""What `setup` asks Terraform for, and what it writes into hvdcloud.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hvdcloud.config.model import Config
from hvdcloud.errors import UsageError
from hvdcloud.setup.choices import SetupOptions, choose_variables, remember_choices, user_variables
from hvdcloud.setup.setup import yaml_values
from hvdcloud.setup.terraform import WorkFolder, find_terraform

DEFAULTS = {
    "project": "lab-42",
    "region": "us-central1",
    "other_regions": {},
    "bucket": None,
    "self_delete": ["digits"],
}


@pytest.fixture
def work(tmp_path: Path) -> WorkFolder:
    (tmp_path / "lab-42").mkdir()
    return WorkFolder(tmp_path / "lab-42")


def variables(work: WorkFolder, *, gce: dict[str, Any] | None = None, name: str = "digits", **said: Any) -> Any:
    config = Config.model_validate({"name": name, "gce": gce or {}})
    return choose_variables(config, "lab-42", SetupOptions(**said), work)


def carried_out(work: WorkFolder, chosen: dict[str, Any]) -> None:
    work.propose(chosen)
    work.accept()


def test_without_a_word_everything_is_the_default(work: WorkFolder) -> None:
    assert variables(work) == DEFAULTS


def test_what_is_said_counts_and_stays(work: WorkFolder) -> None:
    chosen = variables(work, regions=["us-east1"], bucket="gs://mine")
    assert chosen == {**DEFAULTS, "region": "us-east1", "bucket": "mine"}
    carried_out(work, chosen)
    assert variables(work) == chosen


def test_a_plan_that_was_not_carried_out_leaves_no_choices(work: WorkFolder) -> None:
    work.propose(variables(work, bucket="mine"))
    assert variables(work) == DEFAULTS


def test_the_region_is_that_of_the_zones_until_one_was_set_up(work: WorkFolder) -> None:
    assert variables(work, gce={"zones": ["europe-west4-a", "us-east1-b"]})["region"] == "europe-west4"
    carried_out(work, variables(work, regions=["us-west1"]))
    assert variables(work, gce={"zones": ["europe-west4-a"]})["region"] == "us-west1"


def test_without_zones_the_regions_are_those_of_the_continent_that_have_the_gpu(work: WorkFolder) -> None:
    h100 = {"machine_type": "a2-highgpu-1g"}
    assert variables(work, gce=h100)["other_regions"] == {
        "us-east1": "10.10.16.0/20",
        "us-west1": "10.10.32.0/20",
        "us-west3": "10.10.48.0/20",
        "us-west4": "10.10.64.0/20",
    }
    t4 = {"gpu": {"type": "nvidia-tesla-t4"}}
    found = variables(work, gce=t4)
    assert "northamerica-northeast1" in found["other_regions"]
    assert not any(region.startswith(("europe", "asia", "southamerica")) for region in found["other_regions"])
    zones = {**t4, "zones": ["europe-west4-a", "us-east1-b"]}
    assert variables(work, gce=zones)["other_regions"] == {"us-east1": "10.10.16.0/20"}
    assert variables(work, gce={"gpu": {"type": "unheard-of"}})["other_regions"] == {}


def test_a_region_keeps_its_range_and_the_bucket_its_region(work: WorkFolder) -> None:
    carried_out(work, variables(work, regions=["us-west1", "us-east1", "us-west4"]))
    later = variables(work, regions=["us-east4", "us-west4", "us-west1"])
    assert later["region"] == "us-west1"
    assert later["other_regions"] == {"us-east4": "10.10.16.0/20", "us-west4": "10.10.32.0/20"}


def test_regions_that_were_named_stay_and_others_are_added_for_another_gpu(work: WorkFolder) -> None:
    a100, l4 = {"machine_type": "a2-highgpu-1g"}, {"machine_type": "g2-standard-4"}
    carried_out(work, variables(work, gce=a100))
    before = variables(work, gce=a100)["other_regions"]
    more = variables(work, gce=l4)["other_regions"]
    assert before.items() < more.items()
    remember_choices(work, SetupOptions(regions=["us-central1", "us-east4"]))
    assert variables(work, gce=l4)["other_regions"] == {"us-east4": "10.10.16.0/20"}


def test_more_regions_than_ranges_are_refused(work: WorkFolder) -> None:
    with pytest.raises(UsageError, match="17 regions"):
        variables(work, regions=[f"us-east{number}" for number in range(17)])


def test_each_clusters_nodes_may_delete_themselves(work: WorkFolder) -> None:
    carried_out(work, variables(work))
    assert variables(work, name="words")["self_delete"] == ["digits", "words"]


def test_iam_takes_twenty_clusters(work: WorkFolder) -> None:
    carried_out(work, {"self_delete": [f"c{number}" for number in range(20)]})
    with pytest.raises(UsageError) as caught:
        variables(work)
    assert caught.value.hint == f"take those that are gone out of self_delete in {work.folder}/terraform.tfvars.json"


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


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"bucket": "gs://mine/folder"}, "not a bucket's name"),
        ({"regions": ["us-central1-a"]}, "not a region"),
    ],
)
def test_what_cannot_be_is_refused(work: WorkFolder, said: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        variables(work, **said)


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


def test_the_module_is_copied_and_what_it_has_no_more_is_taken_away(work: WorkFolder, tmp_path: Path) -> None:
    module = tmp_path / "module"
    module.mkdir()
    (module / "a.tf").write_text("# 1")
    (module / "b.tf").write_text("# 1")
    assert not work.prepare(module)
    assert not work.prepare(module)
    (module / "a.tf").write_text("# 2")
    (module / "b.tf").unlink()
    (work.folder / "terraform.tfstate").write_text("{}")
    assert work.prepare(module)  # Another version of hvdcloud: its provider may be newer.
    assert {path.name for path in work.folder.iterdir()} >= {"a.tf", "terraform.tfstate"}
    assert [path.read_text() for path in work.folder.glob("*.tf")] == ["# 2"]


def test_outputs_become_keys_and_those_unknown_are_left_out() -> None:
    outputs = {"project": "lab-42", "bucket": "gs://b", "repository": "r/lab-42/hvdcloud", "region": "us-central1"}
    assert yaml_values(outputs, "digits") == {
        "provider": "gce",
        "gce.project": "lab-42",
        "image.repository": "r/lab-42/hvdcloud/digits",
        "checkpoints.bucket": "gs://b/digits",
    }


@pytest.mark.parametrize("torn", ["", '{"version": 4, "resour'])
@pytest.mark.parametrize("before", [None, '{"version": 4}', '{"version'])
def test_a_state_that_was_being_written_when_terraform_was_killed_is_restored(
    work: WorkFolder, torn: str, before: str | None
) -> None:
    with work.lock("setup"):
        state = work.folder / "terraform.tfstate"
    state.write_text(torn)
    if before is not None:
        (work.folder / "terraform.tfstate.backup").write_text(before)
    with work.lock("setup"):
        assert state.read_text() == ('{"version": 4}' if before == '{"version": 4}' else "")
