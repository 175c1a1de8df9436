"""The machines that a project's file names are used only after the user has agreed to it, once for each folder."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from hvdcloud.cluster.confirm_hosts import confirm_hosts
from hvdcloud.config.model import Config
from hvdcloud.console import Console
from hvdcloud.errors import InterruptedByUserError, UsageError
from tests.support.configs import load_config

pytestmark = pytest.mark.usefixtures("state_root")


class Typed(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def console(answer: str | None = None) -> Console:
    """`answer`: what is typed at its terminal; None: it has none."""
    if answer is None:
        return Console(out=io.StringIO(), err=io.StringIO(), keyboard=io.StringIO())
    return Console(out=Typed(), err=Typed(), keyboard=Typed(answer))


def project(folder: Path, hosts: str, **environ: str) -> Config:
    folder.mkdir(exist_ok=True)
    file = folder / "hvdcloud.yaml"
    file.write_text(f"name: digits\nprovider: ssh\nssh: {{hosts: {hosts}}}\n")
    return load_config(file, environ=environ)


def test_without_a_terminal_a_file_s_hosts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"would run on ann@gpu1, gpu2.*never agreed") as refused:
        confirm_hosts(project(tmp_path / "cloned", "[ann@gpu1, gpu2]"), console=console(), given=False)
    assert "export HVDCLOUD_SSH__HOSTS='[ann@gpu1, gpu2]'" in refused.value.hint


def test_no_is_no_and_is_asked_again(tmp_path: Path) -> None:
    config = project(tmp_path / "cloned", "[gpu1]")
    for _ in range(2):
        with pytest.raises(InterruptedByUserError, match="nothing was made"):
            confirm_hosts(config, console=console("n\n"), given=False)


@pytest.mark.parametrize("way", ["yes", "--yes"])
def test_yes_counts_for_this_folder_and_these_hosts_alone(tmp_path: Path, way: str) -> None:
    mine = project(tmp_path / "mine", "[gpu1]")
    confirm_hosts(mine, console=console("y\n" if way == "yes" else None), given=way == "--yes")
    confirm_hosts(mine, console=console(), given=False)
    with pytest.raises(UsageError, match="would run on gpu2,"):
        confirm_hosts(project(tmp_path / "mine", "[gpu1, gpu2]"), console=console(), given=False)
    with pytest.raises(UsageError, match="would run on root@gpu1,"):
        confirm_hosts(project(tmp_path / "mine", "[root@gpu1]"), console=console(), given=False)
    with pytest.raises(UsageError, match="would run on gpu1,"):
        confirm_hosts(project(tmp_path / "cloned", "[gpu1]"), console=console(), given=False)


def test_hosts_of_the_environment_are_the_users_own(tmp_path: Path) -> None:
    config = project(tmp_path / "cloned", "[gpu1]", HVDCLOUD_SSH__HOSTS="[gpu9]")
    confirm_hosts(config, console=console(), given=False)


def test_a_damaged_file_agrees_to_nothing(tmp_path: Path, state_root: Path) -> None:
    config = project(tmp_path / "mine", "[gpu1]")
    confirm_hosts(config, console=console(), given=True)
    (state_root / ".hosts.json").write_text('{"')
    with pytest.raises(UsageError):
        confirm_hosts(config, console=console(), given=False)


def test_other_providers_are_not_asked_about(tmp_path: Path) -> None:
    file = tmp_path / "hvdcloud.yaml"
    file.write_text("name: digits\nssh: {hosts: [gpu1]}\n")
    confirm_hosts(load_config(file, environ={}), console=console(), given=False)
