"""Making containers and their network on a Docker engine, and taking back what was made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hvdcloud.cluster.model import LABEL_CLUSTER, Request
from hvdcloud.errors import ImageError, NameTakenError
from hvdcloud.parallel import side_by_side
from hvdcloud.providers.base import NodeProgress, OnProgress
from hvdcloud.providers.engine import view
from hvdcloud.providers.engine.gpus import claim


class Maker:
    """Makes what a plan asks for, and remembers it. `api` is docker-py's; used from several threads at once."""

    def __init__(self, api: Any, *, on_progress: OnProgress) -> None:
        self._api = api
        self._on_progress = on_progress
        self._made: list[tuple[str, str]] = []
        self._containers: dict[str, str] = {}

    def network(self, request: Request) -> None:
        """Make a network. Raises NameTakenError; CapacityError: no subnet is free; NodeError: refused."""
        from docker.errors import APIError

        name = request.body["name"]
        try:
            created = self._api.create_network(**request.body)
        except APIError as error:
            if error.status_code == 409 or "already exists" in str(error.explanation):
                raise _taken(f"network {name}", request.body["labels"]) from None
            raise view.engine_refused(f"network {name}", error) from error
        self._made.append(("network", str(created["Id"])))

    def create(self, request: Request) -> None:
        """Make a container, and the volumes that it has, without starting it.

        Raises NameTakenError: its name. ImageError: its image is missing. CapacityError: the disk is full.
        NodeError: the engine refuses.
        """
        from docker.errors import APIError, ImageNotFound, NotFound

        name = request.body["Hostname"]
        self._on_progress(NodeProgress(object=name, step="creating"))
        try:
            for mount in request.body["HostConfig"].get("Mounts", []):
                if mount["Type"] == "volume":
                    # One that exists holds what the node of this number wrote earlier in this cluster, and is kept.
                    try:
                        self._api.inspect_volume(mount["Source"])
                    except NotFound:
                        self._made.append(("volume", mount["Source"]))
            created = self._api.create_container_from_config(request.body, name)
        except ImageNotFound:
            raise ImageError(f"image {request.body['Image']} is not on this engine", hint="hvdcloud build") from None
        except APIError as error:
            if error.status_code == 409:
                raise _taken(f"container {name}", request.body["Labels"]) from None
            raise view.engine_refused(f"container {name}", error) from error
        self._made.append(("container", str(created["Id"])))
        self._containers[str(created["Id"])] = name

    def start(self) -> None:
        """Start all containers that were made, at once.

        Raises NodeError: refused. CapacityError: the disk is full, or another container holds a GPU of theirs, and none
        is started.
        """
        claim(self._api, self.ids)
        side_by_side(self._start, self.ids)

    @property
    def ids(self) -> list[str]:
        """Of the containers that were made."""
        return [*self._containers]

    def _start(self, container_id: str) -> None:
        from docker.errors import APIError

        name = self._containers[container_id]
        try:
            self._api.start(container_id)
        except APIError as error:
            raise view.engine_refused(f"container {name}", error) from error
        self._on_progress(NodeProgress(object=name, step="booting"))

    def undo(self) -> list[str]:
        """Delete all that was made, containers before their network. Returns what resisted."""
        found = [(kind, object_id[:12], delete(self._api, kind, object_id)) for kind, object_id in sorted(self._made)]
        return [f"{kind} {name} may still exist: {why}" for kind, name, why in found if why]


def _taken(what: str, labels: Mapping[str, str]) -> NameTakenError:
    down = f"hvdcloud down --name {labels[LABEL_CLUSTER]}"
    hint = f"hvdcloud list shows whose it is; {down} deletes a cluster of ours; else take another --name"
    return NameTakenError(f"{what} already exists", hint=hint)


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
