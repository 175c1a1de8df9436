"""Every `run:` block of `.github/workflows`, and the job for GitLab in docs/ci.md, executed.

Here, where nothing has to be installed. `make nightly` does it on Debian in a container, really installs what they
install, and really builds, checks and uploads a release, to a stand-in of PyPI.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.auth import identity_pool

import hvdcloud
from hvdcloud.cluster.cost import Cost
from hvdcloud.console import Console
from hvdcloud.errors import ExitCode, JobFailedError
from hvdcloud.image.build import buildkit
from hvdcloud.image.plan import base_images
from hvdcloud.image.plan.sources import download_arguments, find_sources
from hvdcloud.lifecycle.down import DownResult
from hvdcloud.lifecycle.launch import LaunchResult
from hvdcloud.lifecycle.pull import PullResult
from hvdcloud.lifecycle.run_result import RunResult
from hvdcloud.lifecycle.up import UpResult
from tests.standins.http_server import own_certificate
from tests.support.command_line import check_command_line
from tests.support.github import Execute, GitHub
from tests.support.harness import TEST_LABEL
from tests.support.http_server import Asked, Reply, answering
from tests.support.small_image import small
from tests.support.workflows import FOLDER, read_workflow

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = r"""ARG BASE_IMAGE
FROM ${BASE_IMAGE}
RUN --mount=type=cache,target=/mnt,id=hvdcloud-apt,sharing=private \
    apt-get update -q -o Acquire::Retries=3 \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -q -o Dir::Cache::Archives=/mnt --no-install-recommends \
        ca-certificates docker.io git jq make python3-venv
"""
VERSION = hvdcloud.__version__
DIGEST = "sha256:" + "0123456789abcdef" * 4
REPOSITORY = "us-central1-docker.pkg.dev/lab/hvdcloud/digits"
ACCOUNT = "ci@lab.iam.gserviceaccount.com"
PROVIDER = "projects/1/locations/global/workloadIdentityPools/ci/providers/ci"
VALUES = {
    "${{ !cancelled() && needs.rows.result == 'success' && needs.rows.outputs.rows != '[]' }}": "true",
    "always() && needs.train.result != 'skipped'": "true",
    "github.actor": "ann",
    "github.event.label.name == 'train' && github.event.pull_request.head.repo.full_name == github.repository": "true",
    "github.event.number": "7",
    "github.event.pull_request.head.sha": "HEAD",
    "github.ref_name": f"v{VERSION}",
    "github.repository": "lab/digits",
    "github.run_id": "1658821493",
    "github.token": "ghs_token",
    "inputs.project || '.'": ".",
    "inputs.sign || vars.SIGN_IMAGES == 'true'": "true",
    "matrix.python": "3.11",
    "matrix.row": "torch-2.13.0-cpu",
    "needs.rows.outputs.rows != '[]'": "true",
    "vars.BUCKET": "gs://lab/pulls",
    "vars.HVDCLOUD_COMMIT || github.event.pull_request.base.sha": "HEAD",
    "vars.HVDCLOUD_COMMIT || github.sha": "HEAD",
    "vars.HVDCLOUD_REPOSITORY || github.repository": "lab/hvdcloud",
    "vars.IMAGE_REPOSITORY": REPOSITORY,
    "vars.MAX_COST || '5'": "5",
    "vars.SERVICE_ACCOUNT": ACCOUNT,
    "vars.WORKLOAD_IDENTITY_PROVIDER": PROVIDER,
}
# Which options the commands take that stand-ins are called for: the manuals of gh 2.45, cosign 2.4 and Docker 28.
OPTIONS = {
    "cosign sign": "--yes",
    "docker login": "--username --password-stdin",
    "docker network ls": "--filter --quiet",
    "docker ps": "--all --filter --quiet",
    "docker volume ls": "--filter --quiet",
    "gh api": "--method --silent",
    "gh auth setup-git": "",
    "gh pr comment": "--body-file",
    "gh pr create": "--body --head --title",
    "gh release create": "--notes-file --title --verify-tag",
    "gh release edit": "--notes-file --title --verify-tag",
    "gh release upload": "--clobber",
    "gh release view": "",
    "sudo rm": "",
}
RUN = "20261121-111045-d1ba2a"
CLEANING = ["hvdcloud down", "hvdcloud stop", "hvdcloud pull", "hvdcloud down", "hvdcloud down --force"]
NewGitHub = Callable[..., GitHub]


def committed(folder: Path) -> Path:
    """The folder as a repository of one commit."""
    git = ["git", "-C", str(folder), "-c", "user.name=ci", "-c", "user.email=ci@example.org"]
    for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "all"]):
        subprocess.run([*git, *words], check=True)
    return folder


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """This repository as it is here, ready for a release; a small one in its place; and a user's project."""
    ours, tiny, project = (tmp_path_factory.mktemp(name) for name in ("hvdcloud", "tiny", "digits"))
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.check_output(listed, cwd=ROOT, text=True).split("\0"):
        if name and (ROOT / name).is_file():
            (ours / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, ours / name)
    changes = (ours / "CHANGELOG.md").read_text()
    if f"[{VERSION}]" not in changes:
        (ours / "CHANGELOG.md").write_text(changes.replace("[Unreleased]", f"[{VERSION}] - 2026-12-01"))
    (tiny / "tools").mkdir()
    for name in ("setup.sh", "engine.sh"):
        (tiny / "tools" / name).write_text(
            "#!/bin/sh\nmkdir -p .venv/bin\nfor each in python hvdcloud; do ln -sf $(command -v $each) .venv/bin/; done"
        )
        (tiny / "tools" / name).chmod(0o755)
    (tiny / "dockerfiles").mkdir()
    (tiny / "dockerfiles" / "published.txt").write_text("# nothing yet\n")
    (project / "hvdcloud.yaml").write_text("name: digits\n")
    return {"lab/hvdcloud": committed(ours), "lab/tiny": committed(tiny), "lab/digits": committed(project)}


def here(command: Sequence[str], environment: Mapping[str, str], place: Path) -> tuple[int, str]:
    done = subprocess.run(
        command, env=environment, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.returncode, done.stdout


@contextmanager
def debian(engine: Any, folder: Path, variables: dict[str, str]) -> Iterator[Execute]:
    """A container that sees the folder and those beside it; `variables` get what its downloads need."""
    base = base_images.here(engine.api, base_images.pinned(base_images.DEBIAN))
    step = small(dockerfile=DOCKERFILE, reference="hvdcloud-tests/ci-machine:1", arguments={"BASE_IMAGE": base})
    buildkit.find(engine.api).build(step, progress=lambda _: None)
    socket = "/var/run/docker.sock"
    volumes = [f"{folder.parent}:{folder.parent}", f"{socket}:{socket}"]
    variables |= {**download_arguments(os.environ), "PATH": "/usr/bin:/bin", "PIP_CACHE_DIR": f"{folder}/pip"}
    if certificates := find_sources(find_links=None, ca_bundle=None, project_dir=folder).ca_bundle:
        volumes.append(f"{certificates}:/opt/ca.crt:ro")
        variables |= {"PIP_CERT": "/opt/ca.crt", "SSL_CERT_FILE": "/opt/ca.crt"}
    container = engine.containers.run(
        step.reference, ["sleep", "3600"], detach=True, init=True, labels={TEST_LABEL: ""}, network_mode="host",
        user=f"{os.getuid()}:{os.getgid()}", group_add=[Path(socket).stat().st_gid], volumes=volumes,
    )  # fmt: skip

    def execute(command: Sequence[str], environment: Mapping[str, str], place: Path) -> tuple[int, str]:
        code, said = container.exec_run(list(command), environment=dict(environment), workdir=str(place))
        return code, said.decode(errors="replace")

    try:
        yield execute
    finally:
        container.remove(force=True)


IN_A_CONTAINER = pytest.param("debian", marks=[pytest.mark.engine, pytest.mark.nightly, pytest.mark.timeout(1800)])


@pytest.fixture(scope="module", params=["here", IN_A_CONTAINER])
def new_github(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, repositories: Mapping[str, Path]
) -> Iterator[NewGitHub]:
    root = tmp_path_factory.mktemp("github")
    variables = {"PATH": os.environ["PATH"]}

    def new(**more: str) -> GitHub:
        folder = Path(tempfile.mkdtemp(dir=root))
        given = variables | more
        return GitHub(execute=execute, folder=folder, values=dict(VALUES), repositories=known, variables=given)

    with ExitStack() as stack:
        if request.param == "debian":
            known, execute = (
                repositories,
                stack.enter_context(debian(request.getfixturevalue("engine"), root, variables)),
            )
        else:
            known, execute = {**repositories, "lab/hvdcloud": repositories["lab/tiny"]}, here
        yield new


def check(called: Sequence[str]) -> None:
    """Whether the real commands take what the stand-ins were asked."""
    for line in set(called):
        words = line.split()
        if words[0] == "hvdcloud":
            check_command_line(words[1:])
        elif words[0] == "make":
            subprocess.run([*words, "--dry-run"], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
        elif words[:3] == ["python", "-m", "tools.published"]:
            subprocess.run([sys.executable, *words[1:], "--help"], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
        elif words[:3] == ["python", "-m", "pytest"]:
            assert [word for word in words[3:] if "tests/" in word and not (ROOT / word).exists()] == []
        else:
            (takes,) = [OPTIONS[command] for command in OPTIONS if f"{line} ".startswith(f"{command} ")]
            assert {word for word in words if word.startswith("--")} <= set(takes.split()), line


@pytest.mark.parametrize("left", ["", "0123456789ab\n"])
def test_tests(new_github: NewGitHub, left: str) -> None:
    github = new_github()
    made = [{"to": "make setup", "makes": ".venv/bin/python"}] * 3 + [{"to": "make docs", "makes": "site/index.html"}]
    github.standins("make", "docker", "python", answers=[*made, {"to": "docker ps --all --quiet", "out": left}])
    ended = github.run(read_workflow("tests.yml"))
    # Nothing that tests made may be left.
    results = {name: "failure" if left and name == "all" else "success" for name in ended}
    assert {name: job.result for name, job in ended.items()} == results
    check(github.called())
    targets = {line.split()[1] for line in github.called() if line.startswith("make")}
    assert targets == {"setup", "lint", "docs", "test-lowest", "release-check", "test"}


def test_nightly(new_github: NewGitHub) -> None:
    github = new_github()
    github.standins("make", "sudo")
    ended = github.run(read_workflow("nightly.yml"))
    assert [job.result for job in ended.values()] == ["success"], ended["nightly"].said
    assert [line for line in github.called() if not line.startswith("sudo")] == ["make nightly"]
    check(["make nightly"])


def test_image(new_github: NewGitHub) -> None:
    document = json.dumps({"result": {"tag": f"{REPOSITORY}:40a7624386cd", "digest": DIGEST}})
    github = new_github()
    github.standins("hvdcloud", "docker", "cosign", answers=[{"to": "hvdcloud build", "out": document}])
    ended = github.run(read_workflow("image.yml"))
    assert [job.result for job in ended.values()] == ["success"] * 2, ended["image"].said
    assert github.called() == [
        f"hvdcloud build --push --json --cache-from {REPOSITORY} --cache-to {REPOSITORY}",
        "docker login --username oauth2accesstoken --password-stdin https://us-central1-docker.pkg.dev < ya29.token",
        f"cosign sign --yes {REPOSITORY}@{DIGEST}",
    ]
    check(github.called())
    assert (github.folder / "artifacts/image/build.json").read_text() == document
    if github.execute is not here:
        installed = ended["image"].workspace / ".hvdcloud/.venv/bin/hvdcloud"
        done = github.execute([str(installed), "--version"], {"HOME": str(github.folder)}, github.folder)
        assert done == (0, f"hvdcloud {VERSION}\n")


@pytest.mark.nightly
def test_base_images(new_github: NewGitHub, repositories: Mapping[str, Path]) -> None:
    tool, row, images = "python -m tools.published", "torch-2.13.0-cpu", "ghcr.io/hvdcloud/images"
    answers = [
        {"to": f"{tool} rows", "out": f'rows=["{row}"]\nrepository={images}\n'},
        {"to": f"{tool} publish", "out": f"hvdcloud/base:{row}-0123456789ab {DIGEST}\n"},
        {"to": f"{tool} write", "makes": "dockerfiles/published.txt"},
    ]
    github = new_github()
    github.values["github.repository"] = "lab/tiny"
    github.standins("cosign", "docker", "gh", "hvdcloud", "python", "sudo", answers=answers)
    ended = github.run(read_workflow("base-images.yml"))
    assert [job.result for job in ended.values()] == ["success"] * 3, "\n".join(job.said for job in ended.values())
    assert [line for line in github.called() if not line.startswith("sudo")] == [
        f"{tool} rows",
        "docker login --username ann --password-stdin ghcr.io < ghs_token",
        f"{tool} publish {row} --to {images}",
        f"cosign sign --yes {images}@{DIGEST}",
        f"{tool} write .cache/rows/{row}.txt",
        "gh auth setup-git",
        "gh pr create --head published-1658821493 --title Published images --body Built, proven, signed and pushed by "
        "the workflow base images; each line is a recipe and its digest.",
    ]
    check(github.called())
    pushed = ["git", "-C", str(repositories["lab/tiny"]), "show", "--format=%s", "--name-only", "published-1658821493"]
    said = subprocess.check_output(pushed, text=True)
    assert said.split("\n\n") == ["Published images of this version's recipes", "dockerfiles/published.txt\n"]


def launched(*, reason: str = "", metrics: dict[str, float] | None = None) -> str:
    """What `hvdcloud launch --json` prints; `reason`: why the job failed."""
    result = LaunchResult(
        up=UpResult(
            cluster="pull-7", id="d1ba2a", nodes=(), image="digits@sha256:0", dollars_per_hour=1.5,
            worst_case_dollars=4.98, created=True, seconds=60.0,
        ),
        run=RunResult(
            run=RUN, cluster="pull-7", state="failed" if reason else "succeeded", ranks=2, exit_code=int(bool(reason)),
            seconds=90.0, checkpoint_files=12, metrics=metrics or {"accuracy": 0.992},
        ),
        pull=PullResult(cluster="pull-7", bucket="gs://b", runs=(), ended=True, seconds=1.0),
        down=DownResult(cluster="pull-7", deleted=(), nothing_to_do=False, seconds=40.0),
        seconds=312.0,
        cost=Cost(dollars=0.1149, dollars_per_hour=1.5, seconds=276.0, nodes=2),
    )  # fmt: skip
    out = io.StringIO()
    error = JobFailedError(reason, hint="hvdcloud logs shows it", exit_code=1) if reason else None
    code = ExitCode.JOB if reason else ExitCode.OK
    Console(as_json=True, out=out).document("launch", result=result, exit_code=code, error=error)
    return out.getvalue()


SUCCEEDED = (
    f"result `succeeded`, exit code `0`, error -, numbers `accuracy 0.992`, run `{RUN}`, nodes `0`, minutes `5.2`, "
    "cost `$0.11`, per hour `$1.5`, at worst `$4.98`, files `12`"
)
# In a code span nothing is a mention, a link or HTML.
HOSTILE = launched(reason="boom ` | <img src=x> @all \n| a |\u202e", metrics={"loss|`": 0.5})
SPANS = "result `failed`, exit code `7`, error `boom     <img src=x> @all    a   `, numbers `loss   0.5`"
NO_ROOM = '{"exit_code": 4, "result": null, "error": {"message": "no room"}}'


@pytest.mark.parametrize(
    ("code", "out", "fails", "cleaning", "said"),
    [
        (0, launched(), "", 1, SUCCEEDED),
        (7, HOSTILE, "", 1, SPANS),
        (4, NO_ROOM, "", 1, "result `no run`, exit code `4`, error `no room`, numbers -"),
        # Cancelled.
        (130, "", "", 1, "result `no run`, exit code `130`, error -, numbers -"),
        (9, "", "down", 4, ""),
        (9, "", "down stop pull", 4, ""),
        (9, "", "down down", 5, ""),
        (9, "", "down down down", 5, ""),
    ],
    ids=["success", "failure", "no-room", "cancelled", "down-1", "down-stop-pull", "down-2", "down-3"],
)
def test_train(new_github: NewGitHub, code: int, out: str, fails: str, cleaning: int, said: str) -> None:
    """Whatever happens, nothing is left billing, the check fails as `launch` does, and a comment says what it was."""
    github = new_github()
    if code:
        github.values["vars.HVDCLOUD_REPOSITORY || github.repository"] = "lab/tiny"
    answers = [{"to": f"hvdcloud {command}", "code": 8} for command in fails.split()]
    # Somebody took the label off already.
    answers += [{"to": "gh api", "code": 1}] if code else []
    github.standins("hvdcloud", "gh", answers=[{"to": "hvdcloud launch", "out": out, "code": code}, *answers])
    ended = github.run(read_workflow("train.yml"))
    train = ended["train"]
    assert train.codes["Train"] == code, train.said
    assert train.codes["Nothing is left billing"] == (8 if fails.count("down") == 3 else 0)
    assert train.result == ("failure" if code else "success")
    assert (train.skipped, ended["comment"].result) == ([], "success")
    assert github.called() == [
        "hvdcloud launch --yes --json",
        *CLEANING[:cleaning],
        "hvdcloud report --to ../result/report.html",
        "gh pr comment 7 --body-file result/summary.md",
        "gh api --silent --method DELETE repos/lab/digits/issues/7/labels/train",
    ]
    check(github.called())
    comment = (ended["comment"].workspace / "result/summary.md").read_text()
    assert (train.folder / "STEP_SUMMARY").read_text() == comment
    head, *rows, _, link = comment.splitlines()[1:]
    assert (head, link) == ("| --- | --- |", "[Log and page](https://github.com/lab/digits/actions/runs/1658821493)")
    assert {row.count("|") for row in rows} == {3}
    assert said in ", ".join(re.sub(r"^\| (.*?) \| (.*) \|$", r"\1 \2", row) for row in rows)


@pytest.mark.parametrize("new_github", [IN_A_CONTAINER], indirect=True)
def test_release(new_github: NewGitHub, tmp_path: Path) -> None:
    """By the real uv, which gets PyPI's token in exchange for GitHub's."""
    asked: list[Asked] = []

    def pypi(request: Asked) -> Reply:
        asked.append(request)
        token = {"/_/oidc/audience": {"audience": "pypi"}, "/token": {"value": "jwt"}}
        return Reply(token.get(request.path, {"success": True, "token": "pypi-token"}))

    certificate, tls = own_certificate(tmp_path)
    with answering(pypi, tls=tls) as url:
        oidc = {"ACTIONS_ID_TOKEN_REQUEST_URL": f"{url}/token?v=1", "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "request"}
        github = new_github(UV_PUBLISH_URL=f"{url}/legacy/", SSL_CERT_FILE=str(tmp_path / "trusted.pem"), **oidc)
        # Also what --check-url is asked with.
        others = find_sources(find_links=None, ca_bundle=None, project_dir=tmp_path).ca_bundle
        trusted = [certificate, others or Path("/etc/ssl/certs/ca-certificates.crt")]
        (tmp_path / "trusted.pem").write_text("".join(file.read_text() for file in trusted))
        github.values["github.repository"] = "lab/hvdcloud"
        github.standins("gh", answers=[{"to": "gh release view", "code": 1}])
        ended = github.run(read_workflow("release.yml"))
    assert [job.result for job in ended.values()] == ["success"] * 4, "\n".join(job.said for job in ended.values())
    files = [f"dist/hvdcloud-{VERSION}{end}" for end in (".tar.gz", "-py3-none-any.whl")]
    assert github.called() == [
        f"gh release view v{VERSION}",
        f"gh release create v{VERSION} --verify-tag --title hvdcloud {VERSION} --notes-file dist/notes.md",
        f"gh release upload v{VERSION} {' '.join(files)} --clobber",
    ]
    check(github.called())
    assert "### Added" in (ended["github"].workspace / "dist/notes.md").read_text()
    uploads = [each.body for each in asked if each.path == "/legacy/"]
    made = [(ended["build"].workspace / file).read_bytes() for file in files]
    assert all(any(content in upload for upload in uploads) for content in made)
    assert len(uploads) == 2
    assert "Bearer request" in [each.headers["Authorization"] for each in asked if each.path == "/token"]


def test_a_release_that_was_made_together_with_its_tag_is_edited(new_github: NewGitHub) -> None:
    github = new_github()
    github.standins("gh")
    (github.folder / "artifacts/dist").mkdir(parents=True)
    for name in ("hvdcloud-1.whl", "hvdcloud-1.tar.gz", "notes.md"):
        (github.folder / "artifacts/dist" / name).touch()
    job = {**read_workflow("release.yml")["jobs"]["github"], "needs": []}
    assert github.run({"jobs": {"github": job}})["github"].result == "success"
    assert [line.split()[2] for line in github.called()] == ["view", "edit", "upload"]
    check(github.called())


def test_there_is_a_test_of_every_workflow() -> None:
    assert {f"test_{file.stem}".replace("-", "_") for file in FOLDER.iterdir()} <= set(globals())


@pytest.mark.parametrize("code", [0, 7])
def test_gitlabs_job(new_github: NewGitHub, repositories: Mapping[str, Path], code: int) -> None:
    [block] = re.findall(r"(?ms)^```yaml\n(train:.*?)^```", (ROOT / "docs/ci.md").read_text())
    job = yaml.safe_load(block)["train"]
    github = new_github()
    fails = {"to": "hvdcloud down", "code": 8}
    github.standins("hvdcloud", answers=[{"to": "hvdcloud launch", "out": launched(), "code": code}, fails])
    files, place = github.folder / "tmp", github.folder / "project"
    files.mkdir()
    place.mkdir()
    project = {
        "HVDCLOUD_REPOSITORY": str(repositories["lab/tiny"]), "HVDCLOUD_COMMIT": "HEAD", "GOOGLE_TOKEN": "jwt",
        "WORKLOAD_IDENTITY_PROVIDER": PROVIDER, "SERVICE_ACCOUNT": ACCOUNT,
        "PATH": f"{github.folder}/standins:{github.variables['PATH']}",
    }  # fmt: skip

    def run(lines: Sequence[str]) -> int:
        script = github.folder / "script.sh"
        script.write_text("\n".join(lines).replace("/tmp/", f"{files}/"))
        values = {name: str(value).replace("/tmp/", f"{files}/") for name, value in job["variables"].items()}
        return github.execute(["bash", "-eo", "pipefail", str(script)], values | project, place)[0]

    assert run([*job["before_script"], *job["script"]]) == code
    # A shell of its own.
    assert run(job["after_script"]) == 0
    assert github.called() == ["hvdcloud launch --yes --json", *CLEANING[:4], "hvdcloud report --to report.html"]
    check(github.called())
    assert (place / "launch.json").read_text() == launched()
    credentials = identity_pool.Credentials.from_file(files / "google.json")
    assert credentials.service_account_email == ACCOUNT
    assert credentials.retrieve_subject_token(None).strip() == "jwt"
