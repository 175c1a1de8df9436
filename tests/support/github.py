"""Runs a workflow's jobs as GitHub does: each `run:` block by its shell, with GitHub's variables and files.

No action is fetched: what the blocks after it see of it is done here. An action, a condition or an expression that is
not known fails the test.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.standins import ci_command

Execute = Callable[[Sequence[str], Mapping[str, str], Path], tuple[int, str]]
"""Runs a command with this environment alone, in this folder; its exit code and what it printed."""
# https://docs.github.com/actions/reference/workflows-and-actions/workflow-syntax#jobsjob_idstepsshell
SHELLS = {None: ["bash", "-e"], "bash": ["bash", "--noprofile", "--norc", "-eo", "pipefail"]}


@dataclass(slots=True, kw_only=True)
class Job:
    """A job that has ended, with the exit codes of its blocks, by their steps' names, else their text."""

    folder: Path
    result: str = "success"
    codes: dict[str, int] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    said: str = ""

    @property
    def workspace(self) -> Path:
        return self.folder / "work"


@dataclass(slots=True, kw_only=True)
class GitHub:
    """Where workflows run.

    Attributes:
        folder: of everything, here and for what `execute` runs.
        values: what expressions are, but for those of outputs.
        repositories: OWNER/NAME → the folder that is cloned.
        variables: what blocks have beside GitHub's own; among them PATH.
    """

    execute: Execute
    folder: Path
    values: dict[str, str]
    repositories: Mapping[str, Path]
    variables: Mapping[str, str]

    def standins(self, *names: str, answers: Sequence[Mapping[str, Any]] = ()) -> None:
        """Puts commands first on PATH, with their answers: `{"to": "gh release view", "code": 1, "out": ""}`."""
        place = self.folder / "standins"
        place.mkdir()
        (place / "answers").write_text(json.dumps(answers))
        (place / "called").touch()
        for name in names:
            shutil.copy(ci_command.__file__, place / name)
            (place / name).chmod(0o755)

    def called(self) -> list[str]:
        """How the stand-ins were called: `gh release view v0.1.0`."""
        lines = (self.folder / "standins" / "called").read_text().splitlines()
        return [" ".join(json.loads(line)) for line in lines]

    def run(self, workflow: Mapping[Any, Any]) -> dict[str, Job]:
        """All jobs of a workflow, one after the other."""
        ended: dict[str, Job] = {}
        for name, job in workflow["jobs"].items():
            ended[name] = Job(folder=self.folder / name)
            needed = [job["needs"]] if isinstance(job.get("needs"), str) else job.get("needs", [])
            condition = job.get("if", "")
            ready = "always()" in condition or {ended[need].result for need in needed} <= {"success"}
            if ready and (not condition or self.values[condition] == "true"):
                self._job(job, ended[name])
                for key, value in job.get("outputs", {}).items():
                    self.values[f"needs.{name}.outputs.{key}"] = self._filled(value)
            else:
                ended[name].result = "skipped"
        return ended

    def _filled(self, value: Any) -> str:
        return re.sub(r"\$\{\{\s*(.*?)\s*\}\}", lambda found: self.values[found[1]], str(value))

    def _all(self, values: Mapping[str, Any]) -> dict[str, str]:
        return {key: self._filled(value) for key, value in values.items()}

    def _job(self, job: Mapping[str, Any], ended: Job) -> None:
        files = {name: ended.folder / name for name in ("ENV", "OUTPUT", "PATH", "STEP_SUMMARY", "EVENT_PATH")}
        ended.workspace.mkdir(parents=True)
        environment = {
            **self.variables,
            **{f"GITHUB_{name}": str(file) for name, file in files.items()},
            "CI": "true",
            "GITHUB_ACTIONS": "true",
            "GITHUB_REF_NAME": self.values.get("github.ref_name", "main"),
            "GITHUB_REPOSITORY": self.values["github.repository"],
            "GITHUB_RUN_ID": "1658821493",
            "GITHUB_SERVER_URL": "https://github.com",
            "GITHUB_WORKSPACE": str(ended.workspace),
            "HOME": str(ended.folder),
            **self._all(job.get("env", {})),
        }
        path = [self.variables["PATH"]]
        files["EVENT_PATH"].write_text("{}")
        files["STEP_SUMMARY"].touch()
        for number, step in enumerate(job["steps"]):
            step = job.get("defaults", {}).get("run", {}) | step
            name = step.get("name") or step.get("uses") or step["run"].strip()
            assert step.get("if", "always()") == "always()", f"{name}: a condition that is not known"
            for file in ("ENV", "OUTPUT", "PATH"):
                files[file].write_text("")
            if "if" not in step and ended.result == "failure":
                ended.skipped.append(name)
                continue
            if "uses" in step:
                self._use(step["uses"].partition("@")[0], self._all(step.get("with", {})), ended, files)
            else:
                script = ended.folder / f"{number}.sh"
                script.write_text(step["run"])
                first = {"PATH": ":".join([str(self.folder / "standins"), *reversed(path[1:]), path[0]])}
                called = [*SHELLS[step.get("shell")], str(script)]
                place = ended.workspace / self._filled(step.get("working-directory", "."))
                code, said = self.execute(called, environment | self._all(step.get("env", {})) | first, place)
                ended.codes[name] = code
                ended.said += said
                if code and not step.get("continue-on-error"):
                    ended.result = "failure"
            environment |= dict(line.split("=", 1) for line in files["ENV"].read_text().splitlines())
            path += files["PATH"].read_text().splitlines()
            for line in files["OUTPUT"].read_text().splitlines():
                key, _, value = line.partition("=")
                self.values[f"steps.{step.get('id')}.outputs.{key}"] = value

    def _use(self, action: str, given: Mapping[str, str], job: Job, files: Mapping[str, Path]) -> None:
        """What a job's later blocks see of an action."""
        artifacts = self.folder / "artifacts"
        artifact = artifacts / given.get("name", "")
        place = job.workspace / given.get("path", ".")
        match action:
            case "actions/checkout":
                source = self.repositories[given.get("repository", self.values["github.repository"])]
                subprocess.run(["git", "clone", "--quiet", source, place], check=True)
                subprocess.run(["git", "-C", place, "checkout", "--quiet", given.get("ref", "HEAD")], check=True)
            case "actions/setup-python":
                # Of the one version that is there; Debian has no `python`.
                (job.folder / "python").mkdir()
                (job.folder / "python" / "python").symlink_to("/usr/bin/python3")
                files["PATH"].write_text(f"{job.folder / 'python'}\n")
            case "actions/upload-artifact":
                if place.is_dir():
                    shutil.copytree(place, artifact)
                else:
                    artifact.mkdir(parents=True)
                    shutil.copy(place, artifact)
            case "actions/download-artifact":
                for each in artifacts.glob(given["pattern"]) if "pattern" in given else [artifact]:
                    shutil.copytree(each, place, dirs_exist_ok=True)
            case "actions/attest-build-provenance":
                assert all(list(job.workspace.glob(pattern)) for pattern in given.get("subject-path", "").split())
            case "google-github-actions/auth":
                (job.workspace / "gha-creds-0123456789abcdef.json").write_text("{}")
                files["OUTPUT"].write_text("access_token=ya29.token\n")
            case _:
                assert action in ("anchore/sbom-action", "hashicorp/setup-terraform", "sigstore/cosign-installer")
