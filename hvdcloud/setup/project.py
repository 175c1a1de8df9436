"""What a project needs before Terraform can plan: the APIs that it reads with, and the role of another setup."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from hvdcloud.google.credentials import google_credentials
from hvdcloud.google.errors import ApiError, explained
from hvdcloud.google.http import ApiCalls, ask

FIRST_APIS = ("cloudresourcemanager", "iam", "serviceusage")
"""In a new project they are off: https://github.com/hashicorp/terraform-provider-google/issues/6101."""
ENABLING_SECONDS = 300.0
"""Until an API that was enabled answers everywhere; most take one minute."""
PAUSE_SECONDS = 5.0
ROLE = "hvdcloudSelfDelete"
"""terraform/identity.tf. Google keeps the name of a deleted role for 37 days, so `setup --destroy` leaves it:
https://cloud.google.com/iam/docs/creating-custom-roles#deleting-custom-role."""


def enable_first_apis(project: str, *, say: Callable[[str], None]) -> None:
    """Enable what Terraform reads with, and wait for it; nothing where it answers already.

    Raises HvdcloudError: enabling was refused. What else is wrong with the project, Terraform says.
    """
    until = time.monotonic() + ENABLING_SECONDS
    asked = False
    while _is_off(project) and time.monotonic() < until:
        if not asked:
            say(f"enabling the first APIs of project {project}: one minute, at times five")
            with explained(f"enable APIs in project {project}"):
                services = [f"{each}.googleapis.com" for each in FIRST_APIS]
                api = _api(project, "serviceusage")
                ask(api, "POST", f"projects/{project}/services:batchEnable", json={"serviceIds": services})
            asked = True
        time.sleep(PAUSE_SECONDS)


def left_by_another_state(project: str) -> Mapping[str, str]:
    """What Terraform has to import unless its state has it: its address and Google's id."""
    name = f"projects/{project}/roles/{ROLE}"
    try:
        deleted = bool(ask(_api(project, "iam"), "GET", name).get("deleted"))
    except ApiError:
        return {}
    return {} if deleted else {"google_project_iam_custom_role.self_delete": name}


def _is_off(project: str) -> bool:
    try:
        ask(_api(project, "cloudresourcemanager"), "GET", f"projects/{project}")
    except ApiError as error:
        return "SERVICE_DISABLED" in (error.code, error.reason) or error.reason == "accessNotConfigured"
    return False


def _api(project: str, service: str) -> ApiCalls:
    credentials, _ = google_credentials(project)
    # The project's own APIs are asked, whatever project a person's login names.
    if hasattr(credentials, "with_quota_project"):
        credentials = credentials.with_quota_project(project)
    return ApiCalls(project=project, credentials=credentials, service=service)
