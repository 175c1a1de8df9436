"""Cloud Build's API: plain JSON with the same credentials, retries and errors as the calls to Compute Engine.

Not by google-cloud-build (3.43): this file would be as long, the library takes 0.2 s to load and 4 MB of disk, and a
build's status that is newer than the library is missing from the answer.
https://cloud.google.com/build/docs/api/reference/rest/v1/projects.locations.builds
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from hvdcloud.google.credentials import google_credentials
from hvdcloud.google.errors import ApiError
from hvdcloud.google.http import RETRY_SECONDS, OnRetry, Transport
from hvdcloud.image.cloudbuild.error_catalogue import CATALOGUE

RUNNING = frozenset({"STATUS_UNKNOWN", "PENDING", "QUEUED", "WORKING"})


class CloudBuild:
    """Builds of one project in one region. Every method raises what `CATALOGUE` makes of the API's errors.

    Args:
        region: `global`, or e.g. `us-central1`.
        credentials: of google.auth.
        endpoint: scheme, host and port; None: Google's.
        on_retry: called with a line for people when a request is about to be sent again.
    """

    def __init__(
        self,
        *,
        project: str,
        region: str,
        credentials: Any,
        endpoint: str | None,
        on_retry: OnRetry,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self.project = project
        self._builds = f"/v1/projects/{project}/locations/{region}/builds"
        self._transport = Transport(
            project=project,
            credentials=credentials,
            endpoint=endpoint,
            retry_seconds=retry_seconds,
            service="cloudbuild",
        )
        self._transport.on_retry = on_retry

    def create(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Starts a build; returns it as the API shows it.

        Args:
            request: the Build. Its last tag is one that no other build has: the API knows no request ids, so after an
                answer that got lost the build is looked for before another one is asked for.
        """
        asked = False

        def attempt() -> dict[str, Any]:
            nonlocal asked
            if asked and (found := self._list(request["tags"][-1])):
                return found[0]
            asked = True
            build: dict[str, Any] = self._transport.ask("POST", self._builds, request)["metadata"]["build"]
            return build

        with self._explained("start a build"):
            return self._transport.persist(attempt, what="builds.create")

    def get(self, build_id: str) -> dict[str, Any]:
        """A build as it is now."""
        with self._explained(f"look at build {build_id}"):
            path = f"{self._builds}/{build_id}"
            return self._transport.persist(lambda: self._transport.ask("GET", path), what="builds.get")

    def tagged(self, tag: str) -> list[dict[str, Any]]:
        """The builds with a tag, the newest one first; no more than the API's first page."""
        with self._explained("list builds"):
            return self._transport.persist(lambda: self._list(tag), what="builds.list")

    def cancel(self, build_id: str) -> None:
        """Ends a build; one that has ended is left as it is."""
        path = f"{self._builds}/{build_id}:cancel"
        with self._explained(f"cancel build {build_id}"):
            try:
                self._transport.persist(lambda: self._transport.ask("POST", path, {}), what="builds.cancel")
            except ApiError:
                if self.get(build_id)["status"] in RUNNING:
                    raise

    def _list(self, tag: str) -> list[dict[str, Any]]:
        query = urlencode({"filter": f'tags="{tag}"'})
        builds = self._transport.ask("GET", f"{self._builds}?{query}").get("builds", [])
        return [build for build in builds if tag in build.get("tags", [])]

    @contextlib.contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        try:
            yield
        except ApiError as error:
            raise replace(error, catalogue=CATALOGUE).as_user_error(doing=doing) from error


def connect(*, project: str | None, region: str, endpoint: str | None, on_retry: OnRetry) -> CloudBuild:
    """Cloud Build with this machine's Application Default Credentials; `project` None: theirs.

    Raises:
        CredentialsError: there are none, or they cannot be read.
        UsageError: neither the configuration nor the credentials name a project.
    """
    credentials, chosen = google_credentials(project)
    return CloudBuild(project=chosen, region=region, credentials=credentials, endpoint=endpoint, on_retry=on_retry)
