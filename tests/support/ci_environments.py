"""What CI services set in a job's environment."""

from __future__ import annotations

GITHUB = {
    "GITHUB_SERVER_URL": "https://github.com",
    "GITHUB_REPOSITORY": "lab/digits",
    "GITHUB_SHA": "4f1c0ffee",
}
GITLAB = {"CI_PROJECT_URL": "https://gitlab.lab/group/digits", "CI_COMMIT_SHA": "4f1c0ffee"}
