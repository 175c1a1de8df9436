"""A real node's container that says to a metadata server that it is ready."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hvdcloud.remote.keys import new_key_pair
from tests.standins.metadata.guest_attributes import Metadata, metadata_server
from tests.support.engines import default_gateway
from tests.support.harness import until


@dataclass
class Machine:
    """A node's container."""

    container: Any
    metadata: Metadata
    address: str
    key: str

    @property
    def status(self) -> dict[str, Any]:
        """What it published last."""
        return self.metadata.taken[-1] if self.metadata.taken else {}


@contextmanager
def running_machine(engine: Any, image: str, name: str) -> Iterator[Machine]:
    """The container for the block, once it is ready; its metadata server is on this machine."""
    pair = new_key_pair("laptop")
    gateway = default_gateway(engine)
    with metadata_server(503, host=gateway) as metadata:
        container = engine.containers.run(
            image,
            name=name,
            hostname=name,
            environment={
                "HVDCLOUD_AUTHORIZED_KEY": pair.public,
                "HVDCLOUD_NODE": name,
                "HVDCLOUD_METADATA": metadata.url,
            },
            detach=True,
        )
        try:
            container.reload()
            address = container.attrs["NetworkSettings"]["IPAddress"]
            machine = Machine(container=container, metadata=metadata, address=address, key=pair.private)
            until(lambda: machine.status.get("status") == "ready", what=f"{name} to be ready")
            yield machine
        finally:
            container.remove(force=True)
