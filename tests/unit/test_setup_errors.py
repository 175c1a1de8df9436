"""What Terraform's failures mean: the exit code, the cause, the way on."""

from __future__ import annotations

from typing import Any

import pytest

from hvdcloud.errors import ExitCode
from hvdcloud.setup.terraform_errors import (
    AlreadyThereError,
    Diagnostic,
    begun_here,
    plain_diagnostics,
    terraform_error,
)

NETWORK = "google_compute_network.hvdcloud"
BUCKET = "google_storage_bucket.checkpoints"

# As the provider prints an answer with google.rpc details.
DISABLED = """\
Error creating Network: googleapi: Error 403: Compute Engine API has not been used in project 1 before or it is off.
Details:
[
  {
    "@type": "type.googleapis.com/google.rpc.ErrorInfo",
    "domain": "googleapis.com",
    "metadata": {
      "activationUrl": "https://console.example/enable",
      "consumer": "projects/1",
      "service": "compute.googleapis.com"
    },
    "reason": "SERVICE_DISABLED"
  }
]
, accessNotConfigured"""


@pytest.mark.parametrize(
    ("address", "said", "code", "words"),
    [
        ("", "Attempted to load application default credentials since neither `credentials` nor `access_token` was set",
         3, "gcloud auth application-default login"),
        ("", "oauth2: \"invalid_grant\" \"Token has been expired or revoked.\"", 3, "have expired"),
        (NETWORK, "Error creating Network: googleapi: Error 401: Request had invalid authentication credentials.", 3,
         "credentials"),
        (NETWORK, DISABLED, 3, "gcloud services enable compute.googleapis.com --project=lab-42"),
        (NETWORK, "googleapi: Error 403: Required 'compute.networks.create' permission for 'projects/x', forbidden",
         3, "compute.networks.create"),
        ("google_project_service.api[\"iam.googleapis.com\"]",
         "googleapi: Error 403: Permission denied to enable service [iam.googleapis.com], forbidden",
         3, "owner of project lab-42"),
        ("google_artifact_registry_repository.images",
         "rpc error: code = PermissionDenied desc = Permission 'artifactregistry.repositories.create' denied",
         3, "owner of project lab-42"),
        ("google_project_service.api[\"compute.googleapis.com\"]",
         "googleapi: Error 400: Billing account for project '1' is not found. Billing must be enabled for activation "
         "of service(s) 'compute.googleapis.com' to proceed. ... UREQ_PROJECT_BILLING_NOT_FOUND",
         3, "gcloud billing projects link lab-42"),
        (BUCKET, "googleapi: Error 403: The billing account for the owning project is disabled in state absent, "
         "accountDisabled", 3, "gcloud billing projects link lab-42"),
        ("google_billing_budget.hvdcloud[0]",
         "Error creating Budget: googleapi: Error 403: The caller does not have permission", 3, "hvdcloud.tfvars"),
        (NETWORK, "googleapi: Error 403: Quota 'NETWORKS' exceeded. Limit: 5.0 globally., quotaExceeded", 4,
         "NETWORKS"),
        (NETWORK, "googleapi: Error 409: The resource 'projects/lab-42/global/networks/hvdcloud' already exists, "
         "alreadyExists", 2, "hvdcloud setup on that machine"),
        (BUCKET, "googleapi: Error 409: Your previous request to create the named bucket succeeded and you already own "
         "it., conflict", 2, "hvdcloud setup on that machine"),
        (BUCKET, "googleapi: Error 409: The requested bucket name is not available. The bucket namespace is shared by "
         "all users of the system., conflict", 2, "--bucket OTHER-NAME"),
        (BUCKET, "Error trying to delete bucket lab-42-hvdcloud without `force_destroy` set to true", 2,
         "holds something"),
        (NETWORK, "googleapi: Error 503: Backend Error, backendError", 5, "status.cloud.google.com"),
        (NETWORK, "Post \"https://compute.googleapis.com/\": dial tcp: lookup compute.googleapis.com: no such host", 5,
         "network and proxy"),
        ("", "Failed to query available provider packages\nCould not retrieve the list of available versions", 5,
         "network and proxy"),
        ("", "Error acquiring the state lock", 2, "running in the same folder"),
        ("", "Unsupported Terraform Core version", 2, "too old"),
        ("", "Failed to save state: write terraform.tfstate: no space left on device", 4, "free some space"),
        ("", "Something that nobody has seen before", 2, "Something that nobody has seen before"),
    ],
)  # fmt: skip
def test_what_terraform_says_and_what_it_means(address: str, said: str, code: int, words: str) -> None:
    summary, _, detail = said.partition("\n")
    failure = Diagnostic(summary=summary, detail=detail, address=address)
    error = terraform_error([failure], doing="set up the project", project="lab-42", ended=1)
    assert error.code == ExitCode(code)
    assert words in f"{error.message} {error.hint}"
    assert summary[:60] in error.details  # Terraform's own words are included, too.


def test_a_missing_right_comes_before_what_follows_from_it() -> None:
    failures = [
        Diagnostic(summary="googleapi: Error 404: The network was not found, notFound", address=NETWORK),
        Diagnostic(summary="googleapi: Error 403: no, forbidden", address=BUCKET),
    ]
    error = terraform_error(failures, doing="set up the project", project="lab-42", ended=1)
    assert error.code == ExitCode.CREDENTIALS
    assert len(error.details.splitlines()) == 2


def test_a_terraform_that_was_killed_is_an_error_too() -> None:
    error = terraform_error([], doing="set up the project", project="lab-42", ended=-9)
    assert error.code == ExitCode.NODE
    assert "signal 9" in error.message


def test_output_for_people_is_read_too() -> None:
    text = (
        "Initializing provider plugins...\n╷\n│ Error: Failed to query available provider packages\n│ \n"
        "│ Could not retrieve the list of available versions for provider\n│ hashicorp/google\n╵\n"
    )
    (found,) = plain_diagnostics(text)
    assert found.summary == "Failed to query available provider packages"
    assert found.detail.endswith("hashicorp/google")
    assert plain_diagnostics("one\n\ntwo\n")[0].text == "one\ntwo"
    assert plain_diagnostics("") == []


def test_all_that_is_there_already_is_named() -> None:
    said = "googleapi: Error 409: already exists, alreadyExists"
    failures = [Diagnostic(summary=said, address=address) for address in (NETWORK, BUCKET)]
    error = terraform_error(failures, doing="set up the project", project="lab-42", ended=1)
    assert isinstance(error, AlreadyThereError)
    assert error.addresses == [NETWORK, BUCKET]


def test_what_was_begun_and_not_refused_may_be_there() -> None:
    """Only that is taken up without a word: what Google refused may belong to another user."""

    def hook(kind: str, address: str, action: str = "create") -> dict[str, Any]:
        return {"type": kind, "hook": {"resource": {"addr": address}, "action": action}}

    def said(address: str, text: str) -> dict[str, Any]:
        return {"type": "diagnostic", "diagnostic": {"severity": "error", "summary": text, "address": address}}

    events = [
        {"type": "version"},
        *(hook("apply_start", address) for address in ("made", "refused", "taken", "crashed", "cut")),
        hook("apply_start", "changed", "update"),
        hook("apply_complete", "made"),
        hook("apply_errored", "refused"),
        hook("apply_errored", "crashed"),
        said("refused", "googleapi: Error 403: no"),
        said("taken", "googleapi: Error 409: already exists"),
        said("crashed", "Plugin did not respond"),
    ]
    assert begun_here(events) == ["made", "crashed", "cut"]
