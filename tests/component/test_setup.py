"""The project of the credentials, and a state that Terraform still writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hvdcloud.config.model import Config
from hvdcloud.errors import UsageError
from hvdcloud.setup.choices import find_project
from hvdcloud.setup.terraform import WorkFolder
from tests.standins.google_account import service_account


def test_the_project_is_the_commands_then_the_files_then_the_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config.model_validate({"name": "digits", "gce": {"project": "from-the-file"}})
    with service_account("token") as account:
        key = tmp_path / "key.json"
        account.write(key)
        key.write_text(json.dumps({**json.loads(key.read_text()), "project_id": "from-the-key"}))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
        assert find_project(config, "from-the-flag") == "from-the-flag"
        assert find_project(config, None) == "from-the-file"
        assert find_project(Config.model_validate({"name": "digits"}), None) == "from-the-key"
        with pytest.raises(UsageError, match="not a project id"):
            find_project(config, "../elsewhere")


def test_a_whole_state_and_one_that_terraform_still_writes_stay(tmp_path: Path) -> None:
    work = WorkFolder(tmp_path)
    with work.lock("setup"):
        state = work.folder / "terraform.tfstate"
    (work.folder / "terraform.tfstate.backup").write_text("{}")
    state.write_text('{"version": 4}')
    with work.lock("setup"):
        assert state.read_text() == '{"version": 4}'
    state.write_text("{")
    hold = "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"
    command = [sys.executable, "-c", hold, str(state)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as terraform:
        assert terraform.stdout is not None
        assert terraform.stdout.readline() == b"\n"
        with work.lock("setup"):
            assert state.read_text() == "{"
        terraform.communicate(b"\n")
