"""`notify` in hvdcloud.yaml."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvdcloud.config.file import load_config
from hvdcloud.config.notify import NotifyConfig
from hvdcloud.errors import UsageError
from hvdcloud.runs.notice import EVENTS, KINDS

ADDRESS = "https://hooks.slack.com/services/T0/B0/hunter2"


def loaded(folder: Path, text: str, **environ: str) -> NotifyConfig:
    (folder / "hvdcloud.yaml").write_text(f"name: digits\nnotify: {text}\n")
    return load_config(folder / "hvdcloud.yaml", environ=environ).notify


def test_the_file_names_variables_and_events(tmp_path: Path) -> None:
    notify = loaded(tmp_path, "{slack: SLACK_WEBHOOK, on: [lost, failed, lost]}")
    assert notify.variables == {"slack": "SLACK_WEBHOOK"}
    assert notify.on == ["lost", "failed"]
    assert tuple(loaded(tmp_path, "{}").on) == EVENTS
    assert loaded(tmp_path, "{}").variables == {}
    assert tuple(loaded(tmp_path, "{webhook: A, slack: B}").variables) == KINDS


def test_the_environment_may_name_them_too(tmp_path: Path) -> None:
    assert loaded(tmp_path, "{}", HVDCLOUD_NOTIFY__WEBHOOK="HOOK").webhook == "HOOK"


@pytest.mark.parametrize(
    "text",
    [
        f"{{webhook: '{ADDRESS}'}}",
        f"{{slack: ['{ADDRESS}']}}",
        f"'{ADDRESS}'",
        f"{{webhook: A, on: ['{ADDRESS}']}}",
        "{webhook: A, on: []}",
        "{email: me}",
    ],
)
def test_an_address_in_the_file_is_refused_and_not_shown(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError) as raised:
        loaded(tmp_path, text)
    assert "notify" in raised.value.message
    assert "hunter2" not in f"{raised.value.message}{raised.value.hint}{raised.value.details}"
