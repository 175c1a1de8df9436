"""Where what runs in CI, and hvdcloud itself, come from: commits and hashes, never a name that anyone may take."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.workflows import FOLDER, read_workflow

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted(FOLDER.glob("*.yml"))
# `hvdcloud` as what a package manager is told to get from an index. Documentation may say "never" on that line.
FROM_AN_INDEX = re.compile(
    r"^(?!.*\bnever\b).*?(\b(?:pip3?|pipx|uv(?: tool| pip)?|uvx)\s+(?:install|run|add|inject)\b"
    r"[^\n#;&|]*?[\s\"'`]hvdcloud(?![\w/.-]|\s*@))",
    re.MULTILINE,
)
# What a job may beside reading the repository: a token of the cloud or of PyPI (id-token), provenance for what it made,
# images at the repository's own registry, the release of a tag, a pull request with a branch.
MAY_WRITE = {
    "image.yml": {"image: id-token", "sign: id-token", "sign: attestations"},
    "train.yml": {"train: id-token", "comment: pull-requests"},
    "base-images.yml": {
        *("publish: packages", "publish: id-token", "publish: attestations"),
        *("propose: contents", "propose: pull-requests"),
    },
    "release.yml": {"publish: id-token", "publish: attestations", "github: contents"},
}
FOLDERS = (".ci", ".github", "dockerfiles", "docs", "hvdcloud", "terraform", "tests", "tools")

each_workflow = pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)


def jobs(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(file.read_text())["jobs"]
    return found


@each_workflow
def test_every_action_is_pinned_by_commit_and_says_its_version(file: Path) -> None:
    used = re.findall(r"\buses: *(.*)", file.read_text())
    assert len(used) == sum("uses" in step for job in jobs(file).values() for step in job["steps"]) > 0
    assert [each for each in used if not re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)] == []


def test_an_action_has_one_commit_in_all_workflows() -> None:
    used = {each for file in WORKFLOWS for each in re.findall(r"\buses: *(.*)", file.read_text())}
    assert len({each.partition("@")[0] for each in used}) == len(used)


@each_workflow
def test_no_checkout_leaves_its_token_behind(file: Path) -> None:
    steps = [step for job in jobs(file).values() for step in job["steps"]]
    checkouts = [step for step in steps if step.get("uses", "").startswith("actions/checkout@")]
    assert [step for step in checkouts if step["with"].get("persist-credentials") is not False] == []


@each_workflow
def test_a_job_may_do_no_more_than_it_has_to(file: Path) -> None:
    document = yaml.safe_load(file.read_text())
    assert document["permissions"] in ({}, {"contents": "read"})
    granted = {
        f"{name}: {permission}"
        for name, job in jobs(file).items()
        for permission, access in job.get("permissions", {}).items()
        if (permission, access) != ("contents", "read")
    }
    assert granted == MAY_WRITE.get(file.name, set())


@each_workflow
def test_no_script_has_an_expression_in_it(file: Path) -> None:
    scripts = [step["run"] for job in jobs(file).values() for step in job["steps"] if "run" in step]
    assert [script for script in scripts if "${{" in script] == []


@each_workflow
def test_nobody_elses_code_or_words_reach_a_job_with_rights(file: Path) -> None:
    document = yaml.safe_load(file.read_text())
    # These run with the repository's own rights for whoever comments or opens a pull request. YAML's `on` is true.
    assert not {"issue_comment", "pull_request_target", "workflow_run"} & set(document[True])
    # What anybody may type, in no expression at all: a title, a text, the name of a branch.
    typed = r"\$\{\{[^}]*(?:\.title|\.body|\.message|\.head\.ref|\.head\.label|head_ref|\.default_branch)\b[^}]*\}\}"
    assert re.findall(typed, file.read_text()) == []
    # A pull request may run its own code, or have a right, not both at once with those of a fork.
    for name, job in jobs(file).items():
        if "pull_request" in document[True] and f"{name}: id-token" in MAY_WRITE.get(file.name, set()):
            assert "github.event.pull_request.head.repo.full_name == github.repository" in job["if"]


@each_workflow
def test_no_key_is_stored(file: Path) -> None:
    assert "secrets." not in file.read_text()


def test_only_a_label_trains() -> None:
    document = read_workflow("train.yml")
    assert document[True] == {"pull_request": {"types": ["labeled"]}}
    job = document["jobs"]["train"]
    assert job["if"].startswith("github.event.label.name == 'train' && ")
    assert job["environment"] == "train"
    # The project's folder has no file with credentials.
    assert job["defaults"]["run"]["working-directory"] == "project"


def test_what_a_training_may_cost_is_not_the_pull_requests_to_say() -> None:
    job = read_workflow("train.yml")["jobs"]["train"]
    assert job["env"]["HVDCLOUD_LIMITS__MAX_COST"] == "${{ vars.MAX_COST || '5' }}"
    hours = int(job["env"]["HVDCLOUD_LIMITS__MAX_RUN_DURATION"].removesuffix("h"))
    (launch,) = [step for step in job["steps"] if "hvdcloud launch" in step.get("run", "")]
    # The nodes have gone before GitHub ends the launch, and after that there is time to look.
    assert hours * 60 < launch["timeout-minutes"] <= job["timeout-minutes"] - 30 < 360


def test_what_is_signed_is_the_digest_that_was_pushed_and_only_where_that_is_asked_for() -> None:
    document = read_workflow("image.yml")
    assert list(document[True]) == ["workflow_dispatch"]
    assert document[True]["workflow_dispatch"]["inputs"]["sign"]["default"] is False
    job = document["jobs"]["sign"]
    assert (job["needs"], job["if"]) == ("image", "inputs.sign || vars.SIGN_IMAGES == 'true'")
    assert job["env"]["DIGEST"] == "${{ needs.image.outputs.digest }}"
    (provenance,) = [step["with"] for step in job["steps"] if "attest-build-provenance" in step.get("uses", "")]
    assert provenance["subject-digest"] == job["env"]["DIGEST"]
    assert provenance["subject-name"] == job["env"]["IMAGE_REPOSITORY"]


@pytest.mark.parametrize("name", ["image", "train"])
def test_what_is_installed_is_a_commit_and_has_no_credentials_of_google(name: str) -> None:
    steps = read_workflow(f"{name}.yml")["jobs"][name]["steps"]
    assert [step["with"]["ref"] for step in steps if "vars.HVDCLOUD_COMMIT || " in str(step.get("with", {}).get("ref"))]
    names = [step.get("uses", step.get("name")).partition("@")[0] for step in steps]
    assert names.index("Install hvdcloud") < names.index("google-github-actions/auth")


def test_nothing_installs_hvdcloud_from_an_index_where_the_name_is_not_ours() -> None:
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*") if file.is_file()]
    files += [file for file in ROOT.glob("*") if file.is_file()]
    said = []
    for file in files:
        name = file.relative_to(ROOT).as_posix()
        if file.suffix in (".pyc", ".png"):
            continue
        said += [f"{name}: {each[1]}" for each in FROM_AN_INDEX.finditer(file.read_text(errors="replace"))]
    assert said == []
