"""The hosts of a configuration, which are asked side by side; one that does not answer does not hold up the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from hvdcloud.engine import says_disk_full
from hvdcloud.errors import CapacityError, HvdcloudError, NodeError, first_of
from hvdcloud.parallel import side_by_side
from hvdcloud.providers.ssh.connection import Host
from hvdcloud.visible import words

if TYPE_CHECKING:
    from hvdcloud.config.ssh_hosts import SshHostConfig

R = TypeVar("R")


class Hosts:
    """All of them, in the configuration's order."""

    def __init__(self, configs: Sequence[SshHostConfig]) -> None:
        self.all = tuple(Host(config) for config in configs)
        self._by_name = {host.name: host for host in self.all}

    def __getitem__(self, name: str) -> Host:
        """Raises NodeError: the configuration names no such host."""
        if name not in self._by_name:
            raise NodeError(f"{name} is not one of ssh.hosts any more", hint="name it again in hvdcloud.yaml")
        return self._by_name[name]

    def each(
        self, call: Callable[[Host], R], hosts: Sequence[Host] | None = None, *, only_reads: bool = False
    ) -> Mapping[str, R | HvdcloudError]:
        """`call` for every host, or for these, at once; an error takes its result's place.

        Args:
            only_reads: when the user interrupts, calls are left to themselves.
        """
        asked = self.all if hosts is None else hosts
        results = side_by_side(lambda host: settled(call, host), asked, only_reads=only_reads)
        return {host.name: result for host, result in zip(asked, results, strict=True)}

    def require(self, call: Callable[[Host], R], hosts: Sequence[Host], *, only_reads: bool = False) -> Mapping[str, R]:
        """As `each`. Raises HvdcloudError: of the first host whose call failed; its details name the others."""
        results = self.each(call, hosts, only_reads=only_reads)
        if errors := errors_in(results):
            raise first_of([*errors.values()])
        return {name: result for name, result in results.items() if not isinstance(result, HvdcloudError)}

    def close(self) -> None:
        """End all connections."""
        side_by_side(lambda host: host.close(), self.all)


def settled(call: Callable[[Host], R], host: Host) -> R | HvdcloudError:
    """What the call returns, or an error of this host's."""
    from docker.errors import APIError, DockerException
    from requests.exceptions import RequestException
    from urllib3.exceptions import HTTPError

    try:
        return call(host)
    except HvdcloudError as error:
        return error
    except APIError as error:
        said = words(error.explanation or error)
        kind = CapacityError if says_disk_full(said) else NodeError
        return kind(f"the Docker engine of {host.name} refused: {said}", hint=f"{host.by_hand('docker info')} shows it")
    except (RequestException, HTTPError, DockerException, OSError) as error:
        return NodeError(
            f"the connection to {host.name} was lost: {words(error)}", hint=f"{host.by_hand()} shows whether it is up"
        )


def errors_in(results: Mapping[str, object]) -> Mapping[str, HvdcloudError]:
    """The hosts whose call failed."""
    return {name: result for name, result in results.items() if isinstance(result, HvdcloudError)}
