"""What Google answers, kept as fixtures: operations, lists, serial ports, and the time at which lists show what."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.auth.transport.requests import AuthorizedSession

from hvdcloud.errors import HvdcloudError
from hvdcloud.google.errors import ApiError, answer_error
from hvdcloud.google.http import ApiCalls
from hvdcloud.providers.gce.api.client import ComputeClient
from tests.live.anonymize import Anonymizer

LOOK_SECONDS = 1.0
"""What a VM says last can be read only until it is deleted."""


class Recorder:
    """Reads a project's answers, and writes them without what tells whose project it is.

    Args:
        name: the cluster's.
    """

    def __init__(self, client: ComputeClient, name: str, folder: Path, anonymizer: Anonymizer) -> None:
        self._project = client.project
        self._api = ApiCalls(project=client.project, credentials=client.credentials, endpoint=client.endpoint)
        self._session = AuthorizedSession(client.credentials)
        self.name = name
        self.folder = folder
        self._anonymizer = anonymizer
        self.zones: set[str] = set()

    def text(self, name: str, text: str) -> None:
        """Write a file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(self._anonymizer.text(text), encoding="utf-8")

    def document(self, name: str, content: Any) -> None:
        """Write a JSON file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"{name}.json").write_text(self._anonymizer.document(content), encoding="utf-8")

    def read(self, path: str, **parameters: Any) -> dict[str, Any]:
        """One GET below the project: the API's answer, or what it says against it, which is a fixture as well."""
        try:
            return self._ask("GET", path, parameters)
        except ApiError as error:
            return {"error": {"status": error.status, "reason": error.reason, "message": error.message}}

    def lists(self, step: str) -> None:
        """The cluster as lists show it, and its operations with the filters that hvdcloud would like to use."""
        mine = {"filter": f"labels.hvdcloud-cluster={self.name}", "returnPartialSuccess": "true"}
        for kind in ("instances", "disks"):
            self.document(f"{step}-{kind}", self.read(f"aggregated/{kind}", **mine))
        self.document(f"{step}-firewalls", self.read("global/firewalls"))
        self.document(f"{step}-operations-global", self.read("global/operations"))
        for zone in sorted(self.zones):
            found = self.read(f"zones/{zone}/operations")
            self.document(f"{step}-operations-{zone}", found)
            self.document(
                f"{step}-operations-{zone}-not-done", self.read(f"zones/{zone}/operations", filter="status!=DONE")
            )
            groups = {each["operationGroupId"] for each in found.get("items", ()) if "operationGroupId" in each}
            for number, group in enumerate(sorted(groups)):
                query = f'operationGroupId="{group}"'
                self.document(
                    f"{step}-operations-{zone}-group-{number}", self.read(f"zones/{zone}/operations", filter=query)
                )

    def vm(self, zone: str, name: str) -> dict[str, Any]:
        """The resource, or the error."""
        return self.read(f"zones/{zone}/instances/{name}")

    def maintenance(self, zone: str, name: str) -> dict[str, Any]:
        """Have Compute Engine take a Spot VM away; the operation.

        https://cloud.google.com/compute/docs/instances/create-use-spot#test-settings
        """
        return self._ask("POST", f"zones/{zone}/instances/{name}/simulateMaintenanceEvent")

    def _ask(self, method: str, path: str, parameters: Mapping[str, Any] | None = None) -> dict[str, Any]:
        url = f"{self._api.endpoint}/compute/v1/projects/{self._project}/{path}"

        def ask() -> dict[str, Any]:
            answer = self._session.request(method, url, params=parameters, timeout=300)
            if answer.status_code >= 400:
                raise answer_error(answer.status_code, answer.content, project=self._project)
            content: dict[str, Any] = answer.json()
            return content

        return self._api.persist(ask, what=f"{method} {path}")


class Follower:
    """A context: follows the cluster's VMs by the list, by name, and by their serial ports, in a thread of its own."""

    def __init__(self, recorder: Recorder, step: str) -> None:
        self._recorder = recorder
        self._step = step
        self._serial: dict[str, str] = {}
        self._next: dict[str, str] = {}
        self._seen: list[dict[str, Any]] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"follow-{step}", daemon=True)

    def __enter__(self) -> Follower:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(timeout=300)
        for name, text in sorted(self._serial.items()):
            self._recorder.text(f"{self._step}-serial-{name.rpartition('-')[2]}.txt", text)
        self._recorder.document(f"{self._step}-timeline", self._seen)

    def _follow(self) -> None:
        began = time.monotonic()
        while True:
            try:
                self._look(round(time.monotonic() - began, 1))
            except (HvdcloudError, OSError) as error:
                self._seen.append({"at": round(time.monotonic() - began, 1), "error": str(error)})
            if self._done.wait(LOOK_SECONDS):
                return

    def _look(self, at: float) -> None:
        query = f"labels.hvdcloud-cluster={self._recorder.name}"
        answer = self._recorder.read("aggregated/instances", filter=query)
        listed = {
            vm["name"]: (vm["status"], vm["zone"].rpartition("/")[2])
            for scope in answer.get("items", {}).values()
            for vm in scope.get("instances", ())
        }
        self._recorder.zones |= {zone for _, zone in listed.values()}
        by_name = {}
        for name in {*listed, *self._serial}:
            zone = listed[name][1] if name in listed else sorted(self._recorder.zones)[0]
            found = self._recorder.vm(zone, name)
            by_name[name] = found.get("status") or found.get("error", {}).get("status")
            self._read_serial(zone, name, found.get("id", ""))
        now = {
            "listed": {name: status for name, (status, _) in sorted(listed.items())},
            "by_name": dict(sorted(by_name.items())),
        }
        if "error" in answer:
            now["error"] = answer["error"]
        if not self._seen or {key: value for key, value in self._seen[-1].items() if key != "at"} != now:
            self._seen.append({"at": at, **now})

    def _read_serial(self, zone: str, name: str, number: str) -> None:
        """A VM that replaces another has its number, and a serial port of its own."""
        self._serial.setdefault(name, "")
        vm = f"{name}/{number}"
        said = self._recorder.read(f"zones/{zone}/instances/{name}/serialPort", port=1, start=self._next.get(vm, "0"))
        if "contents" in said:
            self._serial[name] += said["contents"]
            self._next[vm] = str(said.get("next", "0"))


def newest(document: str) -> dict[str, Any]:
    """The newest run in what `hvdcloud status --json` has printed; empty: none."""
    runs = json.loads(document)["result"]["runs"]
    found: dict[str, Any] = runs[-1] if runs else {}
    return found
