"""One machine: a container that boots the image of machine/, and the volume of its own Docker."""

from __future__ import annotations

import codecs
import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tests.standins.compute.backing import BackingHost, Instance, metadata_of
from tests.standins.compute.machines_layers import layer_binds, lent_images

# Enough for an inner engine. Not --privileged: a host that lacks one capability (CAP_SYS_RESOURCE) refuses it.
_CAPABILITIES = ("IPC_LOCK", "NET_ADMIN", "SYS_ADMIN", "SYS_NICE", "SYS_PTRACE", "SYSLOG")
# What is writable on Container-Optimized OS, and whether programs may be run from there.
_WRITABLE = {
    "/etc/docker": "noexec",
    "/home": "noexec",
    "/mnt/disks": "noexec",
    "/run": "exec",
    "/tmp": "exec",
    "/var": "noexec",
}
_SHARED_MEMORY_BYTES = 1 << 30
_SECONDS_TO_LET_GO = 30.0


@dataclass(frozen=True, slots=True)
class Site:
    """What all machines of a backing have in common.

    Attributes:
        client: docker-py's.
        environment: of PID 1, see machine/init.
        images: names of those that every machine has from the start.
    """

    client: Any
    image: str
    network: str
    labels: Mapping[str, str]
    environment: Mapping[str, str]
    images: Sequence[str]


class Machine:
    """What its methods ask for is done in that order on a thread of the machine; what they return is done then.

    Args:
        core: the one that it has. If each had all of them, their ranks' threads would spin for one another's cores, and
            train at a twentieth of the speed.
        lent_layers: its disk has those layers from the start that this machine's engine has of the image which its
            metadata names.

    Attributes:
        instance: the resource as it was at the last start.
        address: IPv4, its own from construction on.
        host: None before the first start.
    """

    def __init__(
        self, site: Site, instance: Instance, *, zone: str, address: str, core: int, lent_layers: bool = False
    ) -> None:
        self.instance = instance
        self.address = address
        self._core = core
        self._lent_layers = lent_layers
        self.host: BackingHost | None = None
        self._site = site
        self._vm = str(instance["name"])
        # Names of instances are unique in a zone only.
        self._name = f"{site.network}-{zone}-{self._vm}"
        self._zone = zone
        self._worker = ThreadPoolExecutor(1, thread_name_prefix=self._vm)
        self._volume: Any = None
        self._container: Any = None
        self._follower: threading.Thread | None = None
        self._on = threading.Event()
        self._ended = threading.Event()
        self._unplugged = threading.Event()
        self._firewall = ""
        self._firewall_lock = threading.Lock()

    def current(self) -> Instance:
        """The resource as it is now."""
        return (self.host and self.host.instance(self._vm)) or self.instance

    def start(self, instance: Instance, host: BackingHost, *, started: Callable[[], None]) -> None:
        """Power on; `started` is called when the container runs."""
        self.instance, self.host = instance, host
        self._worker.submit(self._boot, host, started).add_done_callback(self._report)

    def stop(self, *, graceful_seconds: float) -> Future[None]:
        """Power off: SIGTERM for PID 1, which is the notice that a hypervisor gives, and SIGKILL after so long."""
        return self._worker.submit(self._power_off, graceful_seconds)

    def remove(self) -> Future[None]:
        """Power off and delete container and volume."""
        return self._worker.submit(self._remove)

    def unplug(self) -> None:
        """Do not wait for anything inside any more."""
        self._unplugged.set()
        self._kill("KILL")

    def close(self) -> None:
        """End its thread."""
        self._worker.shutdown()

    def enforce(self, rules: Callable[[], str]) -> None:
        """Put the VPC's rules in force; no-op while it is off.

        Args:
            rules: makes text for iptables-restore from what is known when it is called.

        Raises:
            RuntimeError: iptables refused it.
        """
        from docker.errors import APIError

        with self._firewall_lock:
            text = rules()
            if not self._on.is_set() or text == self._firewall:
                return
            restore = ["sh", "-c", 'printf %s "$RULES" | iptables-restore -w --noflush']
            try:
                code, output = self._container.exec_run(restore, environment={"RULES": text})
            except APIError:
                if self._on.is_set() and not self._ended.wait(_SECONDS_TO_LET_GO):
                    raise
                return
            if code == 0:
                self._firewall = text
            elif not self._ended.wait(1):
                raise RuntimeError(f"{self._vm}: iptables-restore: {output.decode(errors='replace')}\n{text}")

    # -- on the machine's own thread ---------------------------------------------------------------------------------

    def _report(self, booted: Future[None]) -> None:
        """A failure of the engine appears where a failure of the hardware would: the console."""
        if (error := booted.exception()) and self.host:
            self.host.serial(self._vm, f"emulator: {type(error).__name__}: {error}\n")
            if not self._on.is_set():
                self.host.powered_off(self._vm)

    def _boot(self, host: BackingHost, started: Callable[[], None]) -> None:
        if self._unplugged.is_set():
            return
        if self._container is None:
            self._volume = self._site.client.volumes.create(self._name, labels=dict(self._site.labels))
            self._container = self._site.client.containers.get(self._create(host))
        if self._follower:
            self._follower.join()
        self._ended.clear()
        self._firewall = ""
        # Attached before it runs, so that no line is missed.
        serial = self._site.client.api.attach(self._container.id, stdout=True, stderr=True, stream=True)
        self._container.start()
        self._on.set()
        self._follower = threading.Thread(target=self._follow, args=(serial, host), name=self._vm, daemon=True)
        self._follower.start()
        started()

    def _create(self, host: BackingHost) -> str:
        api = self._site.client.api
        binds = ["/sys/fs/cgroup:/sys/fs/cgroup:rw", f"{self._name}:/var/lib/docker"]
        lent = list(self._site.images)
        if self._lent_layers and (image := metadata_of(self.instance).get("hvdcloud-image")):
            lent.append(image)
        # They have layers in common.
        binds += dict.fromkeys(bind for image in lent for bind in layer_binds(self._site.client, image))
        settings = api.create_host_config(
            binds=binds,
            cap_add=list(_CAPABILITIES),
            cpuset_cpus=str(self._core),
            device_cgroup_rules=["a *:* rwm"],
            network_mode=self._site.network,
            read_only=True,
            security_opt=["seccomp=unconfined", "apparmor=unconfined"],
            shm_size=_SHARED_MEMORY_BYTES,
            tmpfs=_WRITABLE,
        )
        # docker run's systempaths=unconfined, which docker-py has no name for.
        settings |= {"MaskedPaths": [], "ReadonlyPaths": [], "CgroupnsMode": "host"}
        # Names in `.internal` are unknown, as where a network has an outbound DNS policy.
        endpoint = api.create_endpoint_config(ipv4_address=self.address)
        images = lent_images(self._site.client, self._site.images)
        gpus = sum(int(gpu.get("acceleratorCount", 0)) for gpu in self.instance.get("guestAccelerators", []))
        created = api.create_container(
            self._site.image,
            name=self._name,
            hostname=self._vm,
            labels=dict(self._site.labels),
            environment={
                **self._site.environment,
                "GPUS": str(gpus),
                "LENT_IMAGES": images,
            },
            host_config=settings,
            networking_config=api.create_networking_config({self._site.network: endpoint}),
            use_config_proxy=False,
        )
        return str(created["Id"])

    def _follow(self, serial: Iterable[bytes], host: BackingHost) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for chunk in serial:
            host.serial(self._vm, decoder.decode(chunk))
        self._container.wait()
        itself = self._on.is_set()
        self._on.clear()
        self._ended.set()
        if itself:
            host.powered_off(self._vm)

    def _power_off(self, graceful_seconds: float) -> None:
        if not self._on.is_set():
            return
        self._on.clear()
        if graceful_seconds > 0 and not self._unplugged.is_set():
            self._kill("TERM")
            self._ended.wait(graceful_seconds)
        self._kill("KILL")
        if not self._ended.wait(_SECONDS_TO_LET_GO):
            raise TimeoutError(f"the engine did not end {self._name} in {_SECONDS_TO_LET_GO:g} s")

    def _kill(self, signal: str) -> None:
        """No-op if it has ended."""
        from docker.errors import APIError

        if self._container and not self._ended.is_set():
            # 409 when it ended in between; where it did not, `_ended` stays unset and is waited for.
            with contextlib.suppress(APIError):
                self._container.kill(signal)

    def _remove(self) -> None:
        self._power_off(0)
        if self._follower:
            self._follower.join()
        if self._container:
            self._container.remove(force=True)
            self._container = None
        if self._volume:
            self._volume.remove()
            self._volume = None
