"""Ways of asking the stand-in of Compute Engine: plain HTTP, and Google's own library."""

from __future__ import annotations

import http.client
import json
import time
import uuid
from typing import Any
from urllib.parse import urlencode, urlsplit

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

    def send(self, method: str, path: str, data: Any = None, headers: dict[str, str] | None = None) -> Reply:
        sent = dict(headers or {})
        if self.token is not None:
            sent.setdefault("Authorization", f"Bearer {self.token}")
        if data is not None and not isinstance(data, bytes):
            data = json.dumps(data).encode()
            sent["Content-Type"] = "application/json"
        self.connection.request(method, path, body=data, headers=sent)
        return Reply(self.connection.getresponse())

    def __call__(self, method: str, path: str, data: Any = None, **query: Any) -> Reply:
        """`path` below the project."""
        tail = f"?{urlencode(query)}" if query else ""
        return self.send(method, f"/compute/v1/projects/test-project/{path}{tail}", data)

    def bulk(self, body: dict[str, Any], *, zone: str = ZONE, request_id: str | None = None) -> Reply:
        return self("POST", f"zones/{zone}/instances/bulkInsert", body, requestId=request_id or str(uuid.uuid4()))

    def done(self, reply: Reply) -> dict[str, Any]:
        """The operation of this answer once it's DONE."""
        assert reply.status == 200, reply.data
        operation: dict[str, Any] = reply.json
        while operation["status"] != "DONE":
            scope = operation["selfLink"].partition("/test-project/")[2]
            operation = self("POST", f"{scope}/wait").json
        return operation

    def up(self, *names: str, zone: str = ZONE, **properties: Any) -> dict[str, Any]:
        """Make these VMs; the bulkInsert's operation."""
        return self.done(self.bulk(bulk_body(*names, **properties), zone=zone))

    def instance(self, name: str, *, zone: str = ZONE) -> dict[str, Any]:
        reply = self("GET", f"zones/{zone}/instances/{name}")
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


def until(condition: Any, *, seconds: float = 10) -> None:
    """Wait for it to be true."""
    end = time.monotonic() + max(seconds, DEADLINE)
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.01)
