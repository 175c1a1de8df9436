"""What is checked on each host before it gets a node."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from hvdcloud.checks import Check, Finding, failed, fine
from hvdcloud.errors import HvdcloudError
from hvdcloud.providers.ssh.connection import Host
from hvdcloud.providers.ssh.hosts import settled
from hvdcloud.providers.ssh.preflight import fit, gpus_of
from hvdcloud.units import counted, size

if TYPE_CHECKING:
    from hvdcloud.cluster.model import ClusterSpec
    from hvdcloud.config.model import Config


def checks(config: Config, spec: ClusterSpec) -> Sequence[Check]:
    """One for each host that would have a node."""
    hosts = [Host(each) for each in config.ssh.hosts[: spec.nodes]]
    engines: dict[str, Host] = {}
    return [Check(name=f"host {host.name}", run=partial(_host, host, hosts, engines)) for host in hosts]


def _host(host: Host, hosts: Sequence[Host], engines: dict[str, Host]) -> Finding:
    """Whether it could have its node, and what it has; `engines`: of the hosts that have answered, by id."""
    with contextlib.closing(host):
        found = settled(lambda asked: _examined(asked, hosts, engines), host)
    if isinstance(found, HvdcloudError):
        raise found
    return found


def _examined(host: Host, hosts: Sequence[Host], engines: dict[str, Host]) -> Finding:
    info, facts = host.api.info(), fit(host)
    gpus_of(host, facts)
    if (engine := str(info.get("ID") or "")) and (other := engines.setdefault(engine, host)) is not host:
        # Whichever has answered first: they are named in the order of ssh.hosts.
        first, second = (each.name for each in hosts if each in (host, other))
        message = f"{first} and {second} in ssh.hosts are the same machine"
        return failed(message, hint=f"take {second} out, or use fewer --nodes")
    cores, memory = counted(int(info.get("NCPU", 0)), "core"), float(info.get("MemTotal", 0)) / 1e9
    machine = f"Docker {info.get('ServerVersion', '?')}, {cores}, {memory:.1f} GB memory"
    gpus = (f"{each.title} {each.name}, {size(each.free_bytes)} free" for each in facts.gpus)
    return fine("; ".join([machine, f"reached by the others at {facts.address}", *gpus]))
