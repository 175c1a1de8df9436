"""One build: what was asked for, how it goes, and what it looks like from outside."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from tests.standins.cloudbuild.errors import invalid

DOCKER = "gcr.io/cloud-builders/docker"
"""The only step image that runs here."""
OVER = frozenset({"SUCCESS", "FAILURE", "INTERNAL_ERROR", "TIMEOUT", "CANCELLED", "EXPIRED"})
_SUBSTITUTION = re.compile(r"\$(?:(\$)|\{(\w+)\}|(\w+))")


@dataclass(slots=True)
class Build:
    """`resource` is the API's Build; written under the server's lock alone."""

    resource: dict[str, Any]
    cancelled: threading.Event = field(default_factory=threading.Event)

    @property
    def id(self) -> str:
        return str(self.resource["id"])

    @property
    def over(self) -> bool:
        return self.resource["status"] in OVER


def new_build(
    request: Mapping[str, Any], *, project: str, number: str, location: str, source: Mapping[str, Any] | None
) -> Build:
    """A build that is QUEUED.

    Args:
        request: well-formed by the schema.
        source: `request`'s, with its generation.

    Raises:
        ApiError: 400.
    """
    _check(request)
    build_id = str(uuid.uuid4())
    values = {"PROJECT_ID": project, "PROJECT_NUMBER": number, "BUILD_ID": build_id, "LOCATION": location}
    region = "" if location == "global" else f";region={location}"
    resource: dict[str, Any] = {
        "timeout": "3600s",
        "queueTtl": "3600s",
        **{key: value for key, value in request.items() if key != "source"},
        "steps": [_expanded(step, values) for step in request["steps"]],
        "images": _expanded(request.get("images", []), values),
        "id": build_id,
        "name": f"projects/{number}/locations/{location}/builds/{build_id}",
        "projectId": project,
        "status": "QUEUED",
        "createTime": now(),
        "logUrl": f"https://console.cloud.google.com/cloud-build/builds{region}/{build_id}?project={number}",
    }
    if source is not None:
        resource["source"] = {"storageSource": dict(source)}
        resource["sourceProvenance"] = {"resolvedStorageSource": dict(source)}
    return Build(resource)


def _check(request: Mapping[str, Any]) -> None:
    """What the schema does not say."""
    if not request.get("steps"):
        raise invalid("invalid build: at least one step is required")
    tags = request.get("tags", [])
    if len(tags) > 64 or any(not re.fullmatch(r"[\w][\w.-]{0,127}", tag) for tag in tags):
        raise invalid(f"invalid build tags {tags}: must match format ^[\\w][\\w.-]{{0,127}}$")
    if not 0 < seconds(request.get("timeout", "3600s")) <= 86400:
        raise invalid(f"invalid timeout {request['timeout']}: must be positive and at most 24 h")
    if int(request.get("options", {}).get("diskSizeGb", 0)) > 4000:
        raise invalid("invalid disk size: the maximum is 4000 GB")
    if request.get("serviceAccount") and not request.get("logsBucket"):
        raise invalid(
            "if 'build.service_account' is specified, the build must either (a) specify 'build.logs_bucket', (b) use "
            "the REGIONAL_USER_OWNED_BUCKET build.options.default_logs_bucket_behavior option, or (c) use either "
            "CLOUD_LOGGING_ONLY / NONE logging options"
        )
    for image in request.get("images", []):
        if not re.fullmatch(r"[a-z0-9.:-]+(/[a-z0-9._-]+)+(:[\w][\w.-]{0,127})?", image):
            raise invalid(f'invalid image name "{image}"')
    for step in request["steps"]:
        if not step.get("name"):
            raise invalid("invalid build: invalid build step name: empty")
        if unknown := set(step) - {"id", "name", "args", "dir", "env", "timeout"}:
            raise invalid(f"this stand-in does not know {', '.join(sorted(unknown))} of a step")
        if step.get("dir", "").startswith("/"):
            raise invalid("this stand-in has no folders outside of the workspace")


def _expanded(value: Any, values: Mapping[str, str]) -> Any:
    """Substitutions are expanded, `$$` is a dollar sign.

    https://cloud.google.com/build/docs/configuring-builds/substitute-variable-values
    """
    if isinstance(value, dict):
        return {key: _expanded(one, values) for key, one in value.items()}
    if isinstance(value, list):
        return [_expanded(one, values) for one in value]

    def replace(found: re.Match[str]) -> str:
        if found[1]:
            return "$"
        name = found[2] or found[3]
        if name not in values:
            raise invalid(
                f"invalid value for 'build.substitutions': key in the template \"{name}\" is not a valid built-in "
                "substitution"
            )
        return values[name]

    return _SUBSTITUTION.sub(replace, value) if isinstance(value, str) else value


def seconds(duration: str) -> float:
    return float(duration.removesuffix("s"))


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")


def matches(build: Mapping[str, Any], query: str) -> bool:
    """Whether a build is in a list with this filter: comparisons of `tags` and `status`, joined by AND.

    https://cloud.google.com/build/docs/view-build-results#filtering_build_results_using_queries

    Raises:
        ApiError: 400; anything else.
    """
    for term in re.split(r"\s+AND\s+", query) if query else []:
        found = re.fullmatch(r'(tags|status)\s*=\s*"([^"]*)"', term)
        if found is None:
            raise invalid(f'invalid list filter: "{query}"')
        value = build.get(found[1], [])
        if found[2] != value and (found[1] == "status" or found[2] not in value):
            return False
    return True
