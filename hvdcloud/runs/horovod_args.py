"""From a run and its hosts to horovodrun's arguments. Pure.

Every choice here has its reason in Horovod 0.28.1's launcher (horovod/runner):

* Gloo by default: it notices a dead host in a second and a frozen one after its timeout, while Open MPI hangs on a
  frozen host. `--gloo` or `--mpi` is always said, since the default depends on how Horovod was built.
* `--network-interfaces` with one name: skips the launcher's own probing of interfaces (driver_service.py) and keeps
  Gloo from picking any of a set (gloo_run.py).
* `-H` names exactly `-np` slots: the Gloo launcher starts a rank on every slot that `-H` lists, regardless of `-np`
  (get_host_assignments in runner/common/util/hosts.py has only a lower limit there).
* `--disable-cache`: the launcher otherwise believes its ssh checks of the last 60 minutes (launch.py).
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from hvdcloud.errors import UsageError
from hvdcloud.runs.launchers import ELASTIC_TIMEOUT_SECONDS, taken
from hvdcloud.runs.spec import Host

SSH_PORT = 2222
MESH_KEY = "/root/.ssh/id_ed25519"
GLOO_TIMEOUT_SECONDS = 30
"""Horovod's own default; how long a frozen host may hold up a run."""
ELASTIC_GLOO_TIMEOUT_SECONDS = 60
"""How long the ranks of an elastic run wait at every change for one that imports its framework and loads its data; if
that takes longer, they die, and are started again. So long, at most, they also wait for one that was lost."""
GLOO_TIMEOUT_VARIABLE = "HOROVOD_GLOO_TIMEOUT_SECONDS"


def elastic_argv(
    *,
    hosts: Sequence[Host],
    least: int,
    most: int,
    interface: str,
    gloo_timeout: int,
    ssh_port: int | None = SSH_PORT,
) -> list[str]:
    """horovodrun's command line for a run whose nodes may leave and join, without the program that every rank runs.

    The node program adds the script that tells Horovod its hosts. No cool-down range: a host whose cool-down ends while
    it is still dead ends the whole job (Horovod resurrects it, and its ssh fails); here a node that returns has a new
    name instead. No reset limit: node/elastic/membership.py bounds how often a node may fail.

    Args:
        hosts: those that the run starts with.
        least: nodes below which Horovod waits for others.
        most: nodes at most.
        interface: the one network interface that connects the hosts.
        gloo_timeout: seconds after which the others continue without a node that does not answer.
        ssh_port: of every host's sshd; None: each has its own, which ssh's configuration knows.
    """
    fewest = sum(sorted(host.slots for host in hosts)[:least])
    slots = max(host.slots for host in hosts)
    argv = ["horovodrun", "--gloo", "-np", str(fewest), "--min-np", str(fewest)]
    argv += ["--max-np", str(slots * most)]
    argv += _reach(ssh_port, interface)
    argv += ["--gloo-timeout-seconds", str(gloo_timeout)]
    return [*argv, "--elastic-timeout", str(ELASTIC_TIMEOUT_SECONDS)]


def _reach(ssh_port: int | None, interface: str) -> list[str]:
    port = [] if ssh_port is None else ["-p", str(ssh_port)]
    return [*port, "-i", MESH_KEY, "--network-interfaces", interface, "--disable-cache"]


def horovodrun_argv(
    *,
    hosts: Sequence[Host],
    ranks: int,
    interface: str,
    controller: str = "gloo",
    mpi_args: str = "",
    gloo_timeout: int = GLOO_TIMEOUT_SECONDS,
    ssh_port: int | None = SSH_PORT,
) -> list[str]:
    """horovodrun's command line, without the program that every rank runs.

    Args:
        hosts: head first: Horovod fills them in this order, so rank 0 is on the head.
        ranks: how many to start (`-np`).
        interface: the one network interface that connects the hosts.
        controller: `gloo` or `mpi`.
        mpi_args: more arguments for mpirun; with `mpi` only.
        gloo_timeout: seconds, with `gloo` only.
        ssh_port: as for `elastic_argv`.

    Raises:
        UsageError: mpi_args without mpi.
    """
    filled = taken(hosts, ranks)
    if filled == taken(hosts[:1], ranks):
        # Where every host is its own, the launcher accepts no other interface (get_local_interfaces).
        interface = "lo"
    argv = ["horovodrun", f"--{controller}", "-np", str(ranks)]
    argv += ["-H", ",".join(f"{host.name}:{host.slots}" for host in filled)]
    argv += _reach(ssh_port, interface)
    if controller == "gloo":
        if mpi_args:
            raise UsageError("run.mpi_args needs Open MPI", hint="set run.controller: mpi, or drop run.mpi_args")
        return [*argv, "--gloo-timeout-seconds", str(gloo_timeout)]
    # Horovod passes the interface to the data connections only (mpi_run.py); Open MPI's own control
    # connections would still try every bridge that hosts have in common.
    extra = " ".join([f"-mca oob_tcp_if_include {shlex.quote(interface)}", mpi_args]).strip()
    return [*argv, f"--mpi-args={extra}"]
