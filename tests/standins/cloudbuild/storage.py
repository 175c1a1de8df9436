"""What Cloud Build does with Cloud Storage: looks at the source, fetches it, and writes the log."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import requests

from tests.standins.cloudbuild.errors import invalid

_SECONDS = 60


class Storage:
    """The builder's access to the stand-in of Cloud Storage.

    Args:
        url: of the stand-in.
        token: of the builder's service account; "" for none.
    """

    def __init__(self, url: str, *, token: str) -> None:
        self._url = url
        self._session = requests.Session()
        if token:
            self._session.headers["Authorization"] = f"Bearer {token}"

    def resolve(self, source: Mapping[str, Any]) -> dict[str, Any]:
        """A `storageSource` with its generation.

        Raises:
            ApiError: 400; it isn't there, or the builder may not read it.
        """
        answer = self._session.get(self._object(source), params=self._generation(source), timeout=_SECONDS)
        if answer.status_code != 200:
            reason = "notFound" if answer.status_code == 404 else "forbidden"
            status = 404 if answer.status_code == 404 else 403
            said = answer.json()["error"]["message"]
            raise invalid(f"could not resolve source: googleapi: Error {status}: {said}, {reason}")
        return {**source, "generation": answer.json()["generation"]}

    def fetch(self, source: Mapping[str, Any], target: Path) -> int:
        """The object's bytes; returns how many.

        Raises:
            requests.HTTPError: it is gone.
        """
        parameters = {**self._generation(source), "alt": "media"}
        with self._session.get(self._object(source), params=parameters, stream=True, timeout=_SECONDS) as answer:
            answer.raise_for_status()
            with target.open("wb") as file:
                for chunk in answer.iter_content(1 << 20):
                    file.write(chunk)
        return target.stat().st_size

    def check_bucket(self, bucket: str) -> None:
        """
        Raises:
            ApiError: 400; the builder has no access to it.
        """
        if self._session.get(f"{self._url}/storage/v1/b/{bucket}", timeout=_SECONDS).status_code != 200:
            raise invalid(f'invalid bucket "{bucket}"; builder service account does not have access to the bucket')

    def write(self, bucket: str, name: str, data: bytes) -> None:
        answer = self._session.post(
            f"{self._url}/upload/storage/v1/b/{bucket}/o",
            params={"uploadType": "media", "name": name},
            headers={"Content-Type": "text/plain; charset=utf-8"},
            data=data,
            timeout=_SECONDS,
        )
        answer.raise_for_status()

    def _object(self, source: Mapping[str, Any]) -> str:
        return f"{self._url}/storage/v1/b/{source['bucket']}/o/{quote(source['object'], safe='')}"

    def _generation(self, source: Mapping[str, Any]) -> dict[str, str]:
        return {"generation": source["generation"]} if "generation" in source else {}


class GrowingLog:
    """`log-BUILDID.txt`: replaced by a longer one again and again, as the real one is.

    Args:
        logs_bucket: as in a Build: `gs://BUCKET/FOLDER`; "" writes nothing.
        every: seconds between two replacements.
    """

    def __init__(self, storage: Storage, *, logs_bucket: str, build_id: str, every: float) -> None:
        bucket, _, folder = logs_bucket.removeprefix("gs://").partition("/")
        self._storage = storage
        self._bucket = bucket
        self._name = f"{folder.rstrip('/')}/log-{build_id}.txt".lstrip("/")
        self._every = every
        self._lock = threading.Lock()
        self._text = b""
        self._written = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def line(self, text: str, *, prefix: str = "") -> None:
        with self._lock:
            self._text += f"{prefix}{text}\n".encode()

    def close(self) -> None:
        """All of it has arrived."""
        self._closed.set()
        self._thread.join()

    def _write(self) -> None:
        last = False
        while not last:
            last = self._closed.wait(self._every)
            with self._lock:
                text = self._text
            if self._bucket and len(text) > self._written:
                self._storage.write(self._bucket, self._name, text)
                self._written = len(text)
