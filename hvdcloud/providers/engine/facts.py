"""What a machine says of itself beside its engine: addresses and GPUs. Pure.

A script for any POSIX shell prints it; nothing is installed there, and nothing is written.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from hvdcloud.errors import NodeError, UsageError
from hvdcloud.providers.engine import gpus as nvidia
from hvdcloud.visible import words

GPU_SECONDS = 20
"""How long nvidia-smi may take."""
_MARK = "--- hvdcloud "
_SECTIONS = {
    "connection": 'echo "$SSH_CONNECTION"',
    "route": "ip -4 route get 192.0.2.1 2>/dev/null",
    "hook": f"command -v {nvidia.TOOLKIT_HOOK}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Of one machine, at one moment.

    Attributes:
        address: where the other hosts reach it, IPv4; None: it does not know.
        gpus: none where it was not asked, or has no NVIDIA driver.
        gpu_problem: why nvidia-smi failed; empty: it did not.
        hook: whether NVIDIA's container toolkit is installed.
    """

    address: str | None
    gpus: tuple[nvidia.Device, ...] = ()
    gpu_problem: str = ""
    hook: bool = False

    def found_gpus(self, place: str) -> tuple[nvidia.Device, ...]:
        """Its GPUs. Raises UsageError: it has no driver.  NodeError: the driver does not answer."""
        if self.gpus:
            return self.gpus
        if self.gpu_problem:
            message = f"nvidia-smi failed on {place}: {self.gpu_problem}"
            raise NodeError(message, hint="nvidia-smi there shows all of it; so does sudo dmesg | grep -i nvrm")
        raise UsageError(
            f"{place} has no NVIDIA driver (there is no nvidia-smi), so nodes get no GPU", hint=nvidia.CPU_HINT
        )


def script(*, ask_gpus: bool) -> str:
    """What to run there.

    Args:
        ask_gpus: also about its GPUs, which can take seconds.
    """
    # Non-interactive logins may lack the folders of root's programs.
    lines = ["LC_ALL=C PATH=$PATH:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/lib/wsl/lib", "export LC_ALL PATH"]
    sections = dict(_SECTIONS)
    if ask_gpus:
        limit = f"timeout -k 1 {GPU_SECONDS}"
        smi = 'command -v nvidia-smi >/dev/null && { %s %s 2>&1 || echo "failed $?"; }'
        sections["devices"] = smi % (limit, shlex.join(nvidia.DEVICES_QUERY))
        sections["processes"] = smi % (limit, shlex.join(nvidia.PROCESSES_QUERY))
    for name, command in sections.items():
        lines += [f"echo '{_MARK}{name}'", command]
    return "\n".join([*lines, "exit 0", ""])


def parse(output: str, *, address: str | None) -> Facts:
    """What the script printed.

    Args:
        address: the one that the configuration names; None: it names none.
    """
    # What a login script printed before the first section is left out.
    parts = (part.partition("\n") for part in output.split(_MARK)[1:])
    found = {name.strip(): text for name, _, text in parts}
    gpus = nvidia.parse(found.get("devices", ""), found.get("processes", ""))
    return Facts(
        address=address or _address(found),
        gpus=gpus,
        gpu_problem="" if gpus else words(found.get("devices", "")),
        hook=bool(found.get("hook", "").strip()),
    )


def _address(found: Mapping[str, str]) -> str | None:
    """The address at which SSH reached it: the last host on the way did so from the hosts' own network. Where the
    others could not use that one, the address from which the machine reaches the internet."""
    connection = found.get("connection", "").split()
    source = re.search(r"\bsrc (\S+)", found.get("route", ""))
    candidates = [connection[2] if len(connection) > 2 else "", source[1] if source else ""]
    return next((each for each in map(_useful, candidates) if each), None)


def _useful(text: str) -> str | None:
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    address = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else found
    return None if address is None or address.is_loopback or address.is_unspecified else str(address)
