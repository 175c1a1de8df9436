"""Making containers and their network on a Docker engine, and taking back what was made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hvdcloud.cluster.model import LABEL_CLUSTER, SSH_PORT, Request
from hvdcloud.errors import CapacityError, ImageError, NameTakenError, NodeError
from hvdcloud.parallel import side_by_side
from hvdcloud.providers.base import NodeProgress, OnProgress
from hvdcloud.providers.engine import view
from hvdcloud.providers.engine.gpu_lock import claim

START_ATTEMPTS = 5


class Maker:
    """Makes what a plan asks for, and remembers it. `api` is docker-py's; used from several threads at once."""

    def __init__(self, api: Any, *, on_progress: OnProgress) -> None:
        self._api = api
        self._on_progress = on_progress
        self._made: list[tuple[str, str]] = []
        self._names: dict[str, str] = {}

    def network(self, request: Request) -> None:
        """Make a network. Raises NameTakenError; CapacityError: no subnet is free; NodeError: refused."""
        self._made.append(("network", self._create_network(request.body)))

    def containers(self, requests: Sequence[Request]) -> list[str]:
        """Make containers and start them, all at once; returns their ids.

        Raises CapacityError: another container holds a GPU of theirs, and none of these is started. Else as `create`
        and `start`.
        """
        made = side_by_side(self.create, requests)
        if any("device_requests" in request.body for request in requests):
            claim(self._api, made)
        side_by_side(self.start, made)
        return made

    def create(self, request: Request) -> str:
        """Make a container without starting it; returns its id.

        Raises NameTakenError: its name. ImageError: its image is missing. CapacityError: the disk is full.
        NodeError: the engine refuses.
        """
        name = request.body["name"]
        self._on_progress(NodeProgress(object=name, step="creating"))
        for volume, labels in request.body.get("volumes", {}).items():
            self._create_volume(volume, labels)
        container_id = self._create_container(request.body)
        self._made.append(("container", container_id))
        self._names[container_id] = name
        return container_id

    def start(self, container_id: str) -> None:
        """Start a container that was made here. Raises NodeError: refused. CapacityError: the disk is full."""
        from docker.errors import APIError

        name = self._names[container_id]
        for attempt in range(1, START_ATTEMPTS + 1):
            try:
                self._api.start(container_id)
                break
            except APIError as error:
                text = str(error.explanation)
                if "port is already allocated" not in text and "address already in use" not in text:
                    raise view.engine_refused(f"container {name}", error) from error
                # The engine has tried ten ports that other programs hold; the next time it tries the ten after them.
                if attempt == START_ATTEMPTS:
                    message = f"container {name}: the engine found no free loopback port for its sshd: {text}"
                    hint = "end the programs that hold these ports, then hvdcloud up again"
                    raise NodeError(message, hint=hint) from None
        self._on_progress(NodeProgress(object=name, step="booting"))

    def undo(self) -> list[str]:
        """Delete all that was made, containers before their network. Returns what resisted."""
        found = [(kind, object_id[:12], delete(self._api, kind, object_id)) for kind, object_id in sorted(self._made)]
        return [f"{kind} {name} may still exist: {why}" for kind, name, why in found if why]

    def _create_network(self, body: Mapping[str, Any]) -> str:
        from docker.errors import APIError

        try:
            created = self._api.create_network(**body)
        except APIError as error:
            text = str(error.explanation)
            if error.status_code == 409 or "already exists" in text:
                down = f"hvdcloud down --name {body['labels'][LABEL_CLUSTER]}"
                hint = f"{down} deletes it if it is ours; else take another --name"
                raise NameTakenError(f"the network {body['name']} exists already", hint=hint) from None
            if "address pool" in text or "overlaps" in text:
                message = f"the engine has no free subnet for the network {body['name']}: {text}"
                hint = "docker network prune deletes networks that no container uses"
                raise CapacityError(message, hint=hint) from None
            raise view.engine_refused(f"network {body['name']}", error) from error
        return str(created["Id"])

    def _create_volume(self, name: str, labels: Mapping[str, str]) -> None:
        """One that exists holds what the node of this number wrote earlier in this cluster, and is kept."""
        from docker.errors import APIError, NotFound

        try:
            self._api.inspect_volume(name)
        except NotFound:
            try:
                self._api.create_volume(name, labels=dict(labels))
            except APIError as error:
                raise view.engine_refused(f"volume {name}", error) from error
            self._made.append(("volume", name))

    def _create_container(self, body: Mapping[str, Any]) -> str:
        from docker.errors import APIError, ImageNotFound
        from docker.types import Mount

        published = "publish" in body
        host_config = self._api.create_host_config(
            port_bindings={SSH_PORT: ("127.0.0.1",)} if published else None,
            binds=[f"{folder}:{target}:rw" for folder, target in body["mounts"].items()],
            # A bind in the other form would make a folder that is missing, and cannot have a colon in its name.
            mounts=[
                Mount(target, folder, type="bind", read_only=True)
                for target, folder in body.get("read_only_mounts", {}).items()
            ],
            shm_size=body["shm_size"],
            tmpfs=dict(body["tmpfs"]),
            cap_drop=list(body["cap_drop"]),
            cap_add=list(body["cap_add"]),
            security_opt=list(body["security_opt"]),
            network_mode=body["network"],
            device_requests=body.get("device_requests"),
        )
        try:
            created = self._api.create_container(
                body["image"],
                name=body["name"],
                hostname=body["hostname"],
                labels=dict(body["labels"]),
                environment=dict(body["environment"]),
                ports=[SSH_PORT] if published else None,
                host_config=host_config,
                networking_config=(
                    {"EndpointsConfig": {body["network"]: {"Aliases": [body["hostname"]]}}} if published else None
                ),
            )
        except ImageNotFound:
            raise ImageError(f"image {body['image']} is not on this engine", hint="hvdcloud build") from None
        except APIError as error:
            if error.status_code == 409:
                down = f"hvdcloud down --name {body['labels'][LABEL_CLUSTER]}"
                hint = f"hvdcloud list shows whose it is; {down} deletes a cluster of ours; else take another --name"
                raise NameTakenError(f"the container name {body['name']} is taken", hint=hint) from None
            raise view.engine_refused(f"container {body['name']}", error) from error
        return str(created["Id"])


def delete(api: Any, kind: str, object_id: str) -> str:
    """Delete a container, network or volume; returns why it may still exist, empty where it is gone or going."""
    from docker.errors import APIError, NotFound

    from hvdcloud.engine_client import EngineLostError

    try:
        if kind == "container":
            api.remove_container(object_id, force=True, v=True)
        elif kind == "network":
            # A foreign container that is attached to it would keep it from being deleted.
            for attached in api.inspect_network(object_id).get("Containers") or {}:
                api.disconnect_container_from_network(attached, object_id, force=True)
            api.remove_network(object_id)
        else:
            api.remove_volume(object_id, force=True)
    except NotFound:
        return ""
    except APIError as error:
        return str(error.explanation)
    except EngineLostError as error:
        return error.message
    return ""
