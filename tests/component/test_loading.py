"""What commands load before they need it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.harness import Project


@pytest.mark.parametrize("line", ["--help", "list --name x"])
def test_help_and_list_do_not_load_the_client_of_compute_engine(line: str, project: Project) -> None:
    program = (
        "import sys; from hvdcloud.cli.main import _run; _run(sys.argv[1:])\n"
        "sys.exit('google.cloud.compute_v1' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program, *line.split()], check=True, env=project.env(), cwd=project.folder)
