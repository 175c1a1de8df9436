"""The journal of a cluster: what each command is about to do, written and synced before it is done."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

from hvdcloud.cluster.files import check_folder, explained, open_private, read_private


class Journal:
    """One line of JSON for each event: where a command was when it was killed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def record(self, event: str, **fields: object) -> None:
        """Append one line and wait until the disk has it; raises what `explained` and `check_folder` raise."""
        line = json.dumps({"time": time.time(), "event": event, **fields}) + "\n"
        check_folder(self._path.parent)
        with explained(self._path):
            descriptor = open_private(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            with os.fdopen(descriptor, "a", encoding="utf-8") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())

    def entries(self) -> list[dict[str, Any]]:
        """Every complete line; a line cut off by a crash is left out."""
        try:
            text = read_private(self._path)
        except OSError:  # There is none, or it is not ours: it is a help only, and `down` works without it.
            return []
        found = []
        for line in text.splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                found.append(json.loads(line))
        return found

    def times(self, cluster_id: str) -> dict[str, float]:
        """When each event of this cluster was written last, in seconds since the epoch; empty: none was here."""
        return {each["event"]: float(each["time"]) for each in self.entries() if each.get("cluster_id") == cluster_id}

    def unfinished_up(self, cluster_id: str) -> bool:
        """Whether an `up` of this cluster was begun from here and neither finished nor undone."""
        events = self.times(cluster_id)
        return "up" in events and not events.keys() & {"up-done", "up-undone", "down-done"}

    def cut_off_create(self) -> str | None:
        """The cluster id of the newest `up`, if it was killed before its create ended: what it had asked for by then
        may not exist yet."""
        begun = [str(entry["cluster_id"]) for entry in self.entries() if entry["event"] == "up"]
        ended = not begun or not self.unfinished_up(begun[-1]) or "created" in self.times(begun[-1])
        return None if ended else begun[-1]
