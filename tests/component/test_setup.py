"""Which Google Cloud project `setup` sets up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hvdcloud.config.model import Config
from hvdcloud.errors import UsageError
from hvdcloud.setup.variables import find_project
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
