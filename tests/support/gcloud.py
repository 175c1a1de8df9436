"""The real gcloud, with nothing of the user's configuration, told to ask servers on this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

SECONDS = 300.0


class Gcloud:
    """Runs gcloud's commands.

    Args:
        folder: for its configuration and logs.
        token: what it sends as its access token.
        endpoints: API (`compute`) → URL.
    """

    def __init__(self, folder: Path, *, token: str, project: str, **endpoints: str) -> None:
        program = shutil.which("gcloud")
        if program is None:
            pytest.skip("gcloud is not installed (https://cloud.google.com/sdk/docs/install)")
        self._folder = folder
        token_file = folder / "token"
        token_file.write_text(token)
        self._program = program
        self.environ = {
            **{name: value for name, value in os.environ.items() if name in ("PATH", "CLOUDSDK_PYTHON")},
            "HOME": str(folder),
            "CLOUDSDK_CONFIG": str(folder / "gcloud"),
            "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(token_file),
            "CLOUDSDK_CORE_PROJECT": project,
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1",
            "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
            **{f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api.upper()}": url for api, url in endpoints.items()},
        }

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The command with its exit code and what it printed."""
        command = [self._program, *arguments]
        return subprocess.run(
            command, env=self.environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS
        )

    def __call__(self, *arguments: str) -> Any:
        """What the command has to say, read from JSON; it succeeds and warns of nothing that went wrong."""
        done = self.run(*arguments, "--format=json")
        assert done.returncode == 0, done.stderr
        assert "did not succeed" not in done.stderr, done.stderr
        return json.loads(done.stdout or "null")
