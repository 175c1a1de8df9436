"""Errors as Cloud Build gives them (https://cloud.google.com/apis/design/errors), and the messages that are known."""

from __future__ import annotations

import json
from typing import Any

from tests.standins.compute.errors import STATUS_NAMES, ApiError

ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"


def body_of(error: ApiError) -> bytes:
    """The answer's body. A reason in capitals is the status's name, where the HTTP status stands for several."""
    named = error.reason if error.reason.isupper() else STATUS_NAMES.get(error.status, "UNKNOWN")
    value: dict[str, Any] = {"code": error.status, "message": error.message, "status": named}
    if error.details:
        value["details"] = error.details
    return json.dumps({"error": value}).encode()


def invalid(message: str) -> ApiError:
    return ApiError(400, "INVALID_ARGUMENT", message)


def not_found() -> ApiError:
    return ApiError(404, "NOT_FOUND", "Requested entity was not found.")


def not_implemented(what: str) -> ApiError:
    return ApiError(501, "UNIMPLEMENTED", f"this stand-in does not implement {what}")


def service_disabled(project: str) -> dict[str, Any]:
    """The fault plan's action for an API that is switched off."""
    url = f"https://console.developers.google.com/apis/api/cloudbuild.googleapis.com/overview?project={project}"
    return {
        "status": 403,
        "message": f"Cloud Build API has not been used in project {project} before or it is disabled. Enable it by "
        f"visiting {url} then retry. If you enabled this API recently, wait a few minutes for the action to propagate "
        "to our systems and retry.",
        "details": [
            {
                "@type": ERROR_INFO,
                "reason": "SERVICE_DISABLED",
                "domain": "googleapis.com",
                "metadata": {
                    "service": "cloudbuild.googleapis.com",
                    "consumer": f"projects/{project}",
                    "activationUrl": url,
                },
            }
        ],
    }


PERMISSION_DENIED: dict[str, Any] = {"status": 403, "message": "The caller does not have permission"}
QUOTA_RESTRICTED: dict[str, Any] = {
    "status": 400,
    "reason": "FAILED_PRECONDITION",
    "message": "failed precondition: due to quota restrictions, cannot run builds in this region, see "
    "https://cloud.google.com/build/docs/locations#restricted_regions_for_some_projects",
}
