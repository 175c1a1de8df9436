"""What the benchmark makes: a folder, projects, images. All of it goes away at the end."""

from __future__ import annotations

import json
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import yaml

from tests.bench.measure import BenchError, output, run

REPOSITORY = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
JOB = HERE / "job"
HVDCLOUD = Path(sys.executable).with_name("hvdcloud")
TORCHX_BIN = REPOSITORY / ".cache" / "bench" / "bin"
"""TorchX has an environment of its own, which `make bench` makes: it wants other versions of some packages."""
BUILD_SECONDS = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A folder with an hvdcloud.yaml."""

    folder: Path
    name: str


class Workplace:
    """A context: on the way out, also after Ctrl-C, everything that was made is removed.

    Raises:
        BenchError: there is no Docker engine, or no TorchX.
    """

    def __init__(self) -> None:
        if not (TORCHX_BIN / "torchx").exists():
            raise BenchError(f"there is no {TORCHX_BIN / 'torchx'}; `make bench` installs it")
        self.token = f"bench-{secrets.token_hex(3)}"
        """Begins the name of everything that is made."""
        self.projects: list[Project] = []
        self._image = self._torchx_image = ""
        if not output("docker", "version", "--format", "{{.Server.Version}}"):
            raise BenchError("no Docker engine answers; `make engine` starts one")
        self._torchx_network_was_there = bool(output("docker", "network", "inspect", "torchx"))
        self.folder = Path(tempfile.mkdtemp(prefix="hvdcloud-bench-"))
        self.env = {"HVDCLOUD_STATE_DIR": str(self.folder / "state")}

    def __enter__(self) -> Workplace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # A second Ctrl-C must not leave anything behind.
        labels = [f"hvdcloud-bench={self.token}", *(f"hvdcloud-cluster={project.name}" for project in self.projects)]
        filters = [f"label={label}" for label in labels]
        if self._torchx_image:
            filters.append(f"ancestor={self._torchx_image}")
        for wanted in filters:
            _docker_rm(["rm", "--force", "--volumes"], ["ps", "--all", "--quiet", "--filter", wanted])
        for label in labels:
            _docker_rm(["network", "rm"], ["network", "ls", "--quiet", "--filter", f"label={label}"])
        if not self._torchx_network_was_there and output("docker", "network", "inspect", "torchx"):
            output("docker", "network", "rm", "torchx")
        if self._torchx_image:
            output("docker", "image", "rm", self._torchx_image)
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.folder.exists():
            # The nodes' root wrote into the folder that stands in for a bucket, and we are not root.
            mount = f"{self.folder.parent}:/parent"
            output(
                *["docker", "run", "--rm", "--volume", mount, "--entrypoint", "rm", self._image],
                *["-rf", f"/parent/{self.folder.name}"],
            )

    # --- projects and their images --------------------------------------------------------------------------------

    def allreduce_project(self) -> Project:
        """The project of the all-reduce job: nothing in its image but what every image has."""
        project = self._project("allreduce")
        project.folder.mkdir()
        shutil.copy(JOB / "allreduce.py", project.folder)
        config = {
            "name": project.name,
            "nodes": 2,
            "image": {"requirements": None},
            "run": {"command": "python allreduce.py"},
        }
        (project.folder / "hvdcloud.yaml").write_text(yaml.safe_dump(config))
        return project

    def template_project(self, *, cores: list[int]) -> Project:
        """The template `torch`, each rank of it on one core of its own.

        Args:
            cores: rank K runs on the K-th one. One thread alone would not do: Horovod has a thread, too.
        """
        project = self._project("template")
        run([HVDCLOUD, "init", project.folder, "--template", "torch", "--name", project.name], env=self.env)
        file = project.folder / "hvdcloud.yaml"
        config = yaml.safe_load(file.read_text())
        words = " ".join(map(str, cores))
        command = f'set -- {words}; shift "$HOROVOD_RANK"; exec taskset --cpu-list "$1" {config["run"]["command"]}'
        config["run"] = {**config["run"], "command": command, "env": {"OMP_NUM_THREADS": "1"}}
        file.write_text(yaml.safe_dump(config))
        return project

    def _project(self, what: str) -> Project:
        name = f"{self.token}-{what}"
        project = Project(folder=self.folder / name, name=name)
        self.projects.append(project)
        return project

    def build(self, project: Project) -> str:
        """The project's image, built if it is not there. Returns its reference.

        It stays: its name is made of its content, and every project with the same content uses it.
        """
        printed = run([HVDCLOUD, "build", "--json"], cwd=project.folder, env=self.env, limit=BUILD_SECONDS).out
        self._image = str(json.loads(printed)["result"]["reference"])
        return self._image

    def without_entrypoint(self, image: str) -> str:
        """The same image for TorchX, which cannot replace an entrypoint. Returns its id."""
        if not output("docker", "image", "inspect", image):
            raise BenchError(f"there is no image {image}; without --image, what `hvdcloud build` makes is used")
        tag = f"hvdcloud-bench/torchx:{self.token}"
        dockerfile = f"FROM {image}\nENTRYPOINT []\n"
        done = subprocess.run(
            ["docker", "build", "--quiet", "--tag", tag, "-"], input=dockerfile, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise BenchError(f"docker cannot make {tag} from {image}:\n{done.stderr}")
        self._torchx_image = tag
        return output("docker", "image", "inspect", "--format", "{{.Id}}", tag)


def _docker_rm(command: list[str], listing: list[str]) -> None:
    if found := output("docker", *listing).split():
        output("docker", *command, *found)
