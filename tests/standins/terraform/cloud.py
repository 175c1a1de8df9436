"""The project that the stand-in of Google's provider makes things in: a JSON file, so that it outlives the process.

Terraform starts a new provider for every command and more often than that.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.standins.terraform import rules
from tests.standins.terraform.elsewhere import Elsewhere

NUMBER = "123456789012"


class RefusedError(Exception):
    """Google said no; the message is how the provider shows it."""


class Cloud:
    """One project.

    Args:
        folder: holds cloud.json (kind → id → attributes) and faults.json (a list, see `tests.standins.terraform.fail`),
            buckets.json (a list, see `tests.standins.terraform.bucket_of_another`), disabled.json (a number, see
            `tests.standins.terraform.disable`).
        compute: URL of the Compute Engine emulator, where networks, subnetworks and firewall rules are made too.
        storage: URL of the stand-in of Cloud Storage, where buckets are made too.
    """

    def __init__(self, folder: Path, *, compute: str | None = None, storage: str | None = None) -> None:
        self._folder = folder
        self._elsewhere = Elsewhere(compute=compute, storage=storage)
        self._lock = threading.Lock()
        self._defaults: dict[str, Any] = {}

    def configure(self, config: Mapping[str, Any]) -> None:
        """What the provider's own block says."""
        project = config["project"] or os.environ.get("GOOGLE_PROJECT") or os.environ.get("GOOGLE_CLOUD_PROJECT")
        self._defaults = {"project": project, "region": config["region"]}

    def create(self, kind: str, planned: Mapping[str, Any]) -> dict[str, Any]:
        """Make one; as it is then.

        Raises:
            RefusedError: by a rule of Google's, or by a fault.
        """
        with self._open() as resources:
            new = self._filled(kind, planned)
            doing = f"Error creating {rules.WORDS[kind]}"
            faults = self._folder / "faults.json"
            if faults.exists() and kind in json.loads(faults.read_text()):
                raise RefusedError(f"{doing}: googleapi: Error 403: {rules.forbidden(kind, new)}")
            others = {rules.BUCKETS_OF_OTHERS: self._buckets_of_others()}
            if message := rules.refuses_to_create({**resources, **others}, kind, new):
                raise RefusedError(f"{doing}: googleapi: {message}")
            if new["id"] in resources.get(kind, {}) and kind not in rules.REPEATABLE:
                raise RefusedError(f"{doing}: googleapi: {rules.exists(kind, new)}")
            if message := self._elsewhere.create(kind, new, resources):
                raise RefusedError(f"{doing}: googleapi: {message}")
            resources.setdefault(kind, {})[new["id"]] = new
            return new

    def read(self, kind: str, state: Mapping[str, Any]) -> dict[str, Any] | None:
        """As it is now; None if it's gone."""
        with self._open() as resources:
            found: dict[str, Any] | None = resources.get(kind, {}).get(state["id"])
            return found

    def disabled(self) -> str | None:
        """Why a plan cannot read the project, if it cannot."""
        path = self._folder / "disabled.json"
        left = json.loads(path.read_text()) if path.exists() else 0
        if left:
            path.write_text(json.dumps(left - 1))
        return rules.api_disabled("cloudresourcemanager", "Cloud Resource Manager API") if left else None

    def update(self, kind: str, prior: Mapping[str, Any], planned: Mapping[str, Any]) -> dict[str, Any]:
        """Change one; as it is then."""
        with self._open() as resources:
            new = self._filled(kind, {**planned, "id": prior["id"]})
            resources.setdefault(kind, {})[prior["id"]] = new
            return new

    def delete(self, kind: str, state: Mapping[str, Any]) -> None:
        """Delete one; gone already is success.

        Raises:
            RefusedError: by a rule of Google's.
        """
        with self._open() as resources:
            if state.get("deletion_policy") == "PREVENT":
                raise RefusedError(f"cannot destroy {rules.WORDS[kind]} without setting deletion_policy to DELETE")
            if state.get("deletion_policy") == "ABANDON" or rules.stays(kind, state):
                return
            if message := rules.refuses_to_delete(resources, kind, state):
                raise RefusedError(f"Error deleting {rules.WORDS[kind]}: googleapi: {message}")
            if message := self._elsewhere.delete(kind, state):
                raise RefusedError(message)
            resources.get(kind, {}).pop(state["id"], None)
            if kind == "google_project_iam_custom_role":
                resources.setdefault(rules.DELETED_ROLES, {})[state["id"]] = {}

    def data(self, kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
        """A data source; the project is the only one."""
        assert kind == "google_project", kind
        project = config["project_id"] or self._defaults["project"]
        known = {"id": f"projects/{project}", "project_id": project, "name": project, "number": NUMBER}
        return {name: known.get(name) for name in config}

    def _buckets_of_others(self) -> dict[str, Any]:
        path = self._folder / "buckets.json"
        return {name: {} for name in json.loads(path.read_text())} if path.exists() else {}

    def _filled(self, kind: str, planned: Mapping[str, Any]) -> dict[str, Any]:
        """With what the provider takes from its own block, and what Google decides."""
        state = dict(planned)
        for name, value in {**self._defaults, "location": self._defaults.get("region")}.items():
            if name in state and state[name] is None:
                state[name] = value
        if "project" in state and not state["project"]:
            raise RefusedError("project: required field is not set")
        # The same at every run: a test may compare outputs.
        unique = str(int(hashlib.sha256(f"{kind} {sorted(planned.items(), key=str)}".encode()).hexdigest()[:15], 16))
        decided = rules.decided(kind, state, number=NUMBER, unique=unique)
        for name, value in decided.items():
            if name in state and (state[name] is None or name in rules.ALWAYS_DECIDED):
                state[name] = value
        return state

    @contextmanager
    def _open(self) -> Iterator[dict[str, dict[str, Any]]]:
        """The resources, for one caller; what it changed is kept, also when it then fails."""
        path = self._folder / "cloud.json"
        with self._lock, (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            before = path.read_text() if path.exists() else "{}"
            resources = json.loads(before)
            try:
                yield resources
            finally:
                after = json.dumps(resources, indent=1, sort_keys=True)
                if after != before:
                    new = path.with_suffix(".new")
                    new.write_text(after)
                    new.replace(path)
