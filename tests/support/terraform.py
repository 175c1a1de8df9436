"""Terraform, with the stand-in of Google's provider, in a copy of the module."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.standins.terraform import MODULE, missing, stand_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """A copy of the module, and a project to apply it to.

    Attributes:
        folder: as for `stand_in`.
        variables: those of the module.
    """

    folder: Path
    environment: Mapping[str, str]
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def module(self) -> Path:
        return self.folder / "module"

    def terraform(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Terraform in the module."""
        command = ["terraform", f"-chdir={self.module}", *arguments]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=300)

    def apply(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`terraform apply` without a question."""
        return self.terraform("apply", "-no-color", "-auto-approve", *self._variables(), *arguments)

    def plan(self) -> subprocess.CompletedProcess[str]:
        """`terraform plan`, which exits with 2 where there are changes."""
        return self.terraform("plan", "-no-color", "-detailed-exitcode", *self._variables())

    def _variables(self) -> list[str]:
        return [f"-var={name}={value}" for name, value in {"project": "test-project", **self.variables}.items()]


def workplace(
    folder: Path, variables: Mapping[str, str] | None = None, *, compute: str | None = None, storage: str | None = None
) -> Workplace:
    """A copy of the module below `folder` in which `terraform init` was run."""
    if reason := missing():
        pytest.skip(reason)
    shutil.copytree(MODULE, folder / "module", ignore=shutil.ignore_patterns(".terraform*", "*.tfstate*"))
    own = {name: value for name, value in os.environ.items() if not name.startswith(("TF_", "GOOGLE_"))}
    environment = {**own, **stand_in(folder, compute=compute, storage=storage)}
    place = Workplace(folder=folder, environment=environment, variables=variables or {})
    init = place.terraform("init", "-no-color")
    assert init.returncode == 0, init.stdout + init.stderr
    return place


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    """The module and a project of one test's own."""
    return workplace(tmp_path)
