"""docs/reference.md says what the program says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from hvdcloud.cluster import model
from hvdcloud.config import file
from hvdcloud.errors import ExitCode
from tools import reference

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = reference.all_commands()
PAGE = reference.reference()


def test_the_page_is_what_make_reference_writes() -> None:
    written = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    assert written == PAGE, "docs/reference.md is behind the program: make reference"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: str(command.command_path))
def test_every_command_has_help_and_an_example_of_its_use(command: typer.Context) -> None:
    said, _, example = (command.command.help or "").partition("\b\nExample:\n")
    assert said.strip(), f"{command.command_path} does not say what it does"
    assert f"$ {command.command_path}" in example, f"the help of {command.command_path} ends without an example"
    assert f"\n$ {command.command_path}" in PAGE


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: str(command.command_path))
def test_every_argument_and_option_has_help(command: typer.Context) -> None:
    parameters = command.command.get_params(command)
    assert [parameter.name for parameter in parameters if not getattr(parameter, "help", "")] == []


def test_every_key_has_a_description() -> None:
    keys = {key: described for key, described, _ in reference.configuration()}
    assert {"name", "image.find_links", "run.elastic.max", "gce.gpu.type", "data.NAME", "ssh.hosts.address"} <= set(
        keys
    )
    assert [key for key, described in keys.items() if not described] == []


@pytest.mark.parametrize("code", list(ExitCode))
def test_every_exit_code_has_a_meaning(code: ExitCode) -> None:
    assert reference.meaning(code).endswith(".")


def test_every_label_is_described() -> None:
    assert set(reference.LABELS) == {value for name, value in vars(model).items() if name.startswith("LABEL_")}


def test_every_variable_of_ours_is_described() -> None:
    """One that is not in ENV_NOT_CONFIG would be refused as an unknown key."""
    reading = re.compile(r"""(?:environ(?:\.get\(|\[)\s*|VARIABLE = )["'](HVDCLOUD_[A-Z_]+)["']""")
    read = {
        name
        for path in (ROOT / "hvdcloud").rglob("*.py")
        if not {"node", "templates"} & set(path.relative_to(ROOT / "hvdcloud").parts)
        for name in reading.findall(path.read_text(encoding="utf-8"))
    }
    # HVDCLOUD_NAME is a key's, read where the shell completes.
    assert {"HVDCLOUD_STATE_DIR", "HVDCLOUD_ADDRESS_URL"} <= read <= {*file.ENV_NOT_CONFIG, "HVDCLOUD_NAME"}
