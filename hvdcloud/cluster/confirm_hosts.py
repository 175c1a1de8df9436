"""Before the first node on machines that a project's file names: the user is asked, once for each folder and host.

The file may come with a project that was cloned from anywhere. Its job would run as root of a container with the
host's network, and get the variables that `run.secrets` names. SSH itself only guards against hosts that the user does
not know (providers/ssh/openssh.py), not against hosts that the user knows but would not use for this.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

from hvdcloud.cluster.files import make_folder, read_private, state_root, write_private
from hvdcloud.config.trust import HOSTS, variable
from hvdcloud.errors import InterruptedByUserError, UsageError

if TYPE_CHECKING:
    from hvdcloud.config.model import Config
    from hvdcloud.console import Console

_FILE = ".hosts.json"


def confirm_hosts(config: Config, *, console: Console, given: bool) -> None:
    """Ask whether nodes may be made on the hosts that hvdcloud.yaml names, unless that was agreed to before.

    Args:
        given: the user has agreed in advance (`--yes`).

    Raises:
        UsageError: there is no terminal to ask at.
        InterruptedByUserError: the answer is no.
    """
    if config.provider != "ssh" or not config.hosts_are_the_files:
        return
    folder, known = str(config.project_dir.resolve()), _agreed()
    asked = [host.text for host in config.ssh.hosts if host.text not in known.get(folder, ())]
    if not asked:
        return
    what = f"the project in {folder} would run on {', '.join(asked)}, in containers with the machine's network"
    if not given:
        if not console.can_ask:
            raise UsageError(
                f"{what}; that was never agreed to, and there is no terminal to ask at",
                hint=f"--yes agrees to it; or name the hosts yourself: export {variable(HOSTS)}='[{', '.join(asked)}]'",
            )
        if not console.confirm(f"{what}; may it?"):
            raise InterruptedByUserError(
                f"{config.name} was not confirmed; nothing was made",
                hint="the same command asks again; ssh.hosts in hvdcloud.yaml names the hosts",
            )
    agreed = {**known, folder: sorted({*known.get(folder, ()), *asked})}
    make_folder(state_root())
    write_private(state_root() / _FILE, json.dumps(agreed, indent=1) + "\n")


def _agreed() -> dict[str, list[str]]:
    """The hosts that were agreed to, by the project's folder; a file that is damaged agrees to nothing."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(read_private(state_root() / _FILE))
        if isinstance(found, dict):
            return {str(folder): [str(host) for host in hosts] for folder, hosts in found.items() if hosts}
    return {}
