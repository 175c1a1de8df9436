"""What becomes a ranks' user's, and what such a process can do."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from hvdcloud.errors import UsageError
from hvdcloud.node import paths, rank_user
from hvdcloud.node.rank_user import RankUser
from hvdcloud.node.run import keras_check
from hvdcloud.node.run.launcher import imported_by_launcher

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
USER = RankUser(name="rank54321", uid=54321, gid=54322, groups=(), home=Path("/nowhere"))


@only_root
def test_a_process_of_the_user_has_no_privilege_left() -> None:
    command = USER.command(["sh", "-c", "id -u; id -G; grep -E '^(Cap(Inh|Prm|Eff|Amb)|NoNewPrivs)' /proc/self/status"])
    uid, groups, *status = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert (uid, groups) == ("54321", "54322")
    assert dict(line.split(":\t") for line in status) == {
        **dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapAmb"), "0" * 16), "NoNewPrivs": "1"
    }  # fmt: skip


@only_root
def test_groups_of_the_images_user_are_kept() -> None:
    command = USER._replace(groups=(54322, 54323)).command(["id", "-G"])
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == ["54322", "54323"]


@only_root
def test_a_folder_is_given_without_what_links_lead_to(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    (outside / "below").mkdir(parents=True)
    for name in ("linked", "named twice", "below/file"):
        (outside / name).touch()
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "own").touch()
    (folder / "link").symlink_to(outside / "linked")
    (folder / "sub" / "folder").symlink_to(outside / "below")
    (folder / "second").hardlink_to(outside / "named twice")
    rank_user.give(folder, USER)
    given = [folder, folder / "sub", folder / "sub" / "own", folder / "link", folder / "sub" / "folder"]
    assert {(path.lstat().st_uid, path.lstat().st_gid) for path in given} == {(54321, 54322)}
    assert {path.lstat().st_uid for path in (outside, *outside.rglob("*"))} == {0}


@only_root
def test_a_user_without_an_entry_gets_a_home_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(paths.ROOT_VARIABLE, str(tmp_path))
    found = rank_user.establish("54321")
    assert found is not None
    assert (found.uid, found.gid, found.groups) == (54321, 54321, ())
    assert found.environment == {"HOME": str(found.home), "USER": "rank54321", "LOGNAME": "rank54321"}
    status = found.home.stat()
    assert (status.st_uid, status.st_mode & 0o777) == (54321, 0o700)
    assert rank_user.find("54321:7") == found._replace(gid=7)


def test_a_user_of_the_image_has_its_group() -> None:
    found = rank_user.find("daemon")
    assert found is not None
    assert (found.name, found.uid) == ("daemon", 1)
    assert 0 not in (found.gid, *found.groups)


@pytest.mark.parametrize(("user", "said"), [("no-such-user", "has no user 'no-such-user'"), ("root", "'root' is root")])
def test_who_cannot_be_the_ranks_user(user: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        rank_user.find(user)


def test_nothing_named_is_root() -> None:
    assert rank_user.find("") is None


@only_root
def test_the_look_for_keras_runs_what_a_rank_has_left_as_the_rank() -> None:
    # Where every user gets to, unlike pytest's folders.
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        mark = folder / "ran"
        left = f"import os\nopen({str(mark)!r}, 'w').write(str(os.getuid()))\n"
        (folder / "sitecustomize.py").write_text(left)
        os.chown(folder, USER.uid, USER.gid)
        environment = {"PATH": os.defpath, "PYTHONPATH": name}
        asked = keras_check.ask(["/usr/bin/python3", "train.py"], environment, account=USER)
        assert keras_check.problem(asked) is None
        assert mark.read_text() == "54321"


@only_root
@pytest.mark.parametrize("whose", ["interpreter", "packages"])
def test_who_may_change_what_root_starts_ranks_with_is_no_ranks_user(whose: str) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        root = Path(name)
        root.chmod(0o755)
        packages = root / "packages"
        packages.mkdir()
        (root / "bin").mkdir()
        python, horovodrun = root / "bin" / "python", root / "bin" / "horovodrun"
        python.write_text(f"#!/bin/sh\necho {packages}\n")
        horovodrun.write_text(f"#!{python}\n")
        for file in (python, horovodrun):
            file.chmod(0o755)

        def found() -> list[Path | None]:
            files = imported_by_launcher(str(root / "bin"), USER)
            assert files == [horovodrun, python, packages]
            return [each for file in files if (each := rank_user.changeable(file, USER))]

        assert found() == []
        given = python if whose == "interpreter" else packages
        os.chown(given, USER.uid, -1)
        assert found() == [given]
        os.chown(given, 0, USER.gid)
        given.chmod(0o775)
        assert found() == [given]
