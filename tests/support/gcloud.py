"""The real gcloud, with nothing of the user's configuration, told to ask servers on this machine."""

from __future__ import annotations

import functools
import json
import os
import select
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

SECONDS = 60.0


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
        server = _server(self._program)
        assert server.stdin is not None
        assert server.stdout is not None
        out, err = self._folder / "out", self._folder / "err"
        asked = {"arguments": arguments, "environ": self.environ, "out": str(out), "err": str(err)}
        server.stdin.write(json.dumps(asked) + "\n")
        server.stdin.flush()
        assert select.select([server.stdout], [], [], SECONDS)[0], f"no answer within {SECONDS} s: {arguments}"
        code = int(server.stdout.readline())
        return subprocess.CompletedProcess(arguments, code, out.read_text(), err.read_text())

    def __call__(self, *arguments: str) -> Any:
        """What the command has to say, read from JSON; it succeeds and warns of nothing that went wrong."""
        done = self.run(*arguments, "--format=json")
        assert done.returncode == 0, done.stderr
        assert "did not succeed" not in done.stderr, done.stderr
        return json.loads(done.stdout or "null")


@functools.cache
def _server(program: str) -> subprocess.Popen[str]:
    """The process that starts gcloud's commands (gcloud_server.py), run by what gcloud itself is run by.

    It ends with this one.
    """
    server = Path(__file__).with_name("gcloud_server.py")
    return subprocess.Popen(
        [program],
        env={**os.environ, "CLOUDSDK_PYTHON_ARGS": f"-S {server}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # Ctrl-C in a terminal is for the tests.
        start_new_session=True,
    )
