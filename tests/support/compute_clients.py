"""Asks the stand-in of Compute Engine over plain HTTP."""

from __future__ import annotations

import http.client
import json
import uuid
from typing import Any
from urllib.parse import urlsplit

from tests.standins.compute import Emulator
from tests.support.harness import DEADLINE

ZONE = "us-central1-a"
LABELS = {"managed-by": "someone", "cluster": "run"}


class Reply:
    """An answer, read to its end."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.data = response.read()

    @property
    def json(self) -> Any:
        return json.loads(self.data)

    @property
    def reason(self) -> str:
        return str(self.json["error"]["errors"][0]["reason"])

    @property
    def message(self) -> str:
        return str(self.json["error"]["message"])


class Plain:
    """One connection that is kept, with a token."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator
        self.token: str | None = emulator.keys.issue(emulator.keys.email)[0]
        self.connection = http.client.HTTPConnection(urlsplit(emulator.url).netloc, timeout=DEADLINE)

    def __enter__(self) -> Plain:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def __call__(self, method: str, path: str, data: Any = None) -> Reply:
        """`path` below the project."""
        headers = {"Content-Type": "application/json"} if data is not None else {}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        body = json.dumps(data).encode() if data is not None else None
        self.connection.request(method, f"/compute/v1/projects/test-project/{path}", body=body, headers=headers)
        return Reply(self.connection.getresponse())

    def bulk(self, body: dict[str, Any]) -> Reply:
        return self("POST", f"zones/{ZONE}/instances/bulkInsert?requestId={uuid.uuid4()}", body)

    def done(self, reply: Reply) -> dict[str, Any]:
        """The operation of this answer once it's DONE."""
        assert reply.status == 200, reply.data
        operation: dict[str, Any] = reply.json
        while operation["status"] != "DONE":
            scope = operation["selfLink"].partition("/test-project/")[2]
            operation = self("POST", f"{scope}/wait").json
        return operation

    def up(self, *names: str) -> None:
        """Make these VMs."""
        self.done(self.bulk(bulk_body(*names)))

    def instance(self, name: str) -> dict[str, Any]:
        reply = self("GET", f"zones/{ZONE}/instances/{name}")
        assert reply.status == 200, reply.data
        return dict(reply.json)


def bulk_body(*names: str, **properties: Any) -> dict[str, Any]:
    """A request for these VMs: n1-standard-4 with one T4, deleted after four hours by default."""
    return {
        "count": str(len(names)),
        "minCount": str(len(names)),
        "perInstanceProperties": {name: {} for name in names},
        "instanceProperties": {
            "machineType": "n1-standard-4",
            "guestAccelerators": [{"acceleratorType": "nvidia-tesla-t4", "acceleratorCount": 1}],
            "disks": [
                {
                    "boot": True,
                    "autoDelete": True,
                    "initializeParams": {
                        "sourceImage": "projects/cos-cloud/global/images/family/cos-125-lts",
                        "diskSizeGb": "100",
                        "diskType": "pd-balanced",
                        "labels": LABELS,
                    },
                }
            ],
            "networkInterfaces": [{"network": "global/networks/default", "nicType": "GVNIC"}],
            "scheduling": {
                "provisioningModel": "STANDARD",
                "onHostMaintenance": "TERMINATE",
                "automaticRestart": False,
                "instanceTerminationAction": "DELETE",
                "maxRunDuration": {"seconds": "14400"},
            },
            "labels": LABELS,
            "metadata": {"items": [{"key": "enable-guest-attributes", "value": "TRUE"}]},
            **properties,
        },
    }
