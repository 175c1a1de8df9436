"""The user whom ranks run as where that is not root (`run.user`): who that is on this node, and what belongs to it.

The node program stays root. So all that it runs, reads or writes in a place where such a rank may write has to be of no
use to the rank: programs that a rank could have changed are started as its user too (`RankUser.command`).
"""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from hvdcloud.errors import UsageError
from hvdcloud.node import machine, paths

SETPRIV = "/usr/bin/setpriv"
"""Of util-linux, which Debian and Ubuntu always have."""
_METADATA_SECONDS = 3
_PASSWD = Path("/etc/passwd")


class RankUser(NamedTuple):
    """One user of this node."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: Path

    def command(self, argv: Sequence[str]) -> list[str]:
        """What root runs to have `argv` run by this user, who can gain no privilege from then on."""
        groups = f"--groups={','.join(map(str, self.groups))}" if self.groups else "--clear-groups"
        ids = [f"--reuid={self.uid}", f"--regid={self.gid}", groups]
        return [SETPRIV, *ids, "--inh-caps=-all", "--no-new-privs", "--", *argv]

    @property
    def environment(self) -> dict[str, str]:
        """What tells programs who they are run by."""
        return {"HOME": str(self.home), "USER": self.name, "LOGNAME": self.name}


def find(user: str) -> RankUser | None:
    """Who `run.user` is on this node; None: "", which is root.

    Args:
        user: a user's name, UID or UID:GID.

    Raises:
        UsageError: there is no such user, or it is root.
    """
    if not user:
        return None
    entry, (number, _, group) = None, user.partition(":")
    try:
        entry = pwd.getpwuid(int(number)) if number.isdecimal() else pwd.getpwnam(user)
    except KeyError:
        if not number.isdecimal():
            hint = f'make it in image.dockerfile: RUN useradd --create-home {user}; or write a number: "1000"'
            raise UsageError(f"run.user: the nodes' image has no user {user!r}", hint=hint) from None
    uid = entry.pw_uid if entry else int(number)
    if uid == 0:
        raise UsageError(f"run.user: {user!r} is root", hint="take run.user out: ranks are root's then")
    gid = int(group) if group else entry.pw_gid if entry else uid
    groups = tuple(sorted(os.getgrouplist(entry.pw_name, gid))) if entry and not group else ()
    home = Path(entry.pw_dir) if entry else None
    if home is None or not _owns(home, uid):
        home = _home(uid)
    return RankUser(name=entry.pw_name if entry else _name(uid), uid=uid, gid=gid, groups=groups, home=home)


def establish(user: str) -> RankUser | None:
    """`find`, with an entry in /etc/passwd and a home folder where the image has none. Raises UsageError as that, or
    where this node has no program to become another user."""
    found = find(user)
    if found is None:
        return None
    if not os.access(SETPRIV, os.X_OK):
        hint = "have the image install util-linux, or take run.user out"
        raise UsageError(f"run.user: the nodes' image has no {SETPRIV}", hint=hint)
    if _reaches_metadata(found):
        hint = "hvdcloud down, then hvdcloud up: new VMs refuse it"
        raise UsageError(f"run.user: {user} would get tokens of this VM's service account", hint=hint)
    if paths.is_container():
        try:
            pwd.getpwuid(found.uid)
        except KeyError:
            # Python's getpass, ssh and others end where a process's user has none.
            with _PASSWD.open("a") as file:
                file.write(f"{_name(found.uid)}:x:{found.uid}:{found.gid}::{_home(found.uid)}:/bin/sh\n")
    if found.home == _home(found.uid):
        found.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chown(found.home, found.uid, found.gid)
    return found


def changeable(file: Path, user: RankUser) -> Path | None:
    """What of a file (or folder) and the folders above it the user may change; None: nothing."""
    real = file.resolve()
    for each in (real, *real.parents):
        status = each.stat()
        grouped = status.st_gid in (user.gid, *user.groups) and status.st_mode & stat.S_IWGRP
        # In /tmp everybody may write, but not rename what is another's.
        anyones = status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX
        if status.st_uid == user.uid or grouped or anyones:
            return each
    return None


def give(folder: Path, user: RankUser) -> None:
    """Make a folder and what is in it the user's, while no rank runs. Links are not followed; a file that has a second
    name stays whose it is: a rank of an earlier run may have linked one of root's here."""
    for _, folders, files, descriptor in os.fwalk(folder):
        os.fchown(descriptor, user.uid, user.gid)
        for name in (*folders, *files):
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
                continue
            if (status.st_uid, status.st_gid) != (user.uid, user.gid):
                os.chown(name, user.uid, user.gid, dir_fd=descriptor, follow_symlinks=False)


def _reaches_metadata(user: RankUser) -> bool:
    """Whether the user could ask the VM's metadata server; providers/gce/plan/startup has the rule against it."""
    server = machine.facts().get("metadata")
    if not server:
        return False
    host = urlsplit(str(server)).hostname
    ask = f"import socket; socket.create_connection(({host!r}, 80), {_METADATA_SECONDS}).close()"
    command = user.command([sys.executable, "-I", "-S", "-c", ask])
    return subprocess.run(command, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0


def _owns(folder: Path, uid: int) -> bool:
    try:
        status = folder.stat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == uid


def _home(uid: int) -> Path:
    return paths.state_dir() / "home" / str(uid)


def _name(uid: int) -> str:
    return f"rank{uid}"
