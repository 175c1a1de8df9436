"""What is checked on each host before it gets a node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hvdcloud.checks import Check, Finding, failed, fine, first_of
from hvdcloud.errors import HvdcloudError
from hvdcloud.providers.ssh.hosts import Host, Hosts, settled
from hvdcloud.providers.ssh.preflight import Examiner
from hvdcloud.units import counted, size

if TYPE_CHECKING:
    from hvdcloud.cluster.model import ClusterSpec
    from hvdcloud.config.model import Config


def checks(config: Config, spec: ClusterSpec) -> Sequence[Check]:
    """One for each host that would have a node."""
    hosts = Hosts(config.ssh.hosts[: spec.nodes])
    examiner = Examiner(hosts, idle_seconds=None)
    engines: dict[str, Host] = {}

    def check(host: Host) -> Check:
        return Check(name=f"host {host.name}", run=lambda: _host(examiner, host, spec, engines))

    return [check(host) for host in hosts.all]


def _host(examiner: Examiner, host: Host, spec: ClusterSpec, engines: dict[str, Host]) -> Finding:
    """Whether it could have its node, and what it has; `engines`: of the hosts that have answered, by id."""
    try:
        found = settled(lambda asked: _examined(examiner, asked, spec, engines), host)
    finally:
        host.connection.close()
    if isinstance(found, HvdcloudError):
        raise found
    return found


def _examined(examiner: Examiner, host: Host, spec: ClusterSpec, engines: dict[str, Host]) -> Finding:
    info, facts = host.api.info(), host.facts(ask_gpus=host.config.gpus is not None)
    if problems := examiner.problems_of(host, spec, info, facts):
        return first_of(problems)
    if (engine := str(info.get("ID") or "")) and (other := engines.setdefault(engine, host)) is not host:
        # Whichever has answered first: they are named in the order of ssh.hosts.
        first, second = (each.name for each in examiner.hosts.all if each in (host, other))
        message = f"{first} and {second} in ssh.hosts are the same machine"
        return failed(message, hint=f"take {second} out, or use fewer --nodes")
    parts = [
        f"Docker {info.get('ServerVersion', '?')}",
        counted(int(info.get("NCPU", 0)), "core"),
        f"{float(info.get('MemTotal', 0)) / 1e9:.1f} GB memory",
    ]
    if facts.free_bytes is not None:
        parts.append(f"{size(facts.free_bytes)} of disk free")
    parts.append(f"reached by the others at {facts.address}")
    if facts.gpus is not None:
        parts += [f"{each.title} {each.name}, {size(each.free_bytes)} free" for each in facts.gpus.devices]
    return fine("; ".join([", ".join(parts[:4]), *parts[4:]]))
