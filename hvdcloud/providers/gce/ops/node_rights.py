"""What nodes may do, in their bucket and with their image, and the commands that grant it."""

from __future__ import annotations

import re
import shlex

_FILE = 'resource.name.extract("/.hvdcloud/{file}")'
RECORDS = " || ".join(
    (
        *(f'{_FILE}.startsWith("{each}-")' for each in ("manifest", "samples", "proof")),
        *(f'resource.name.endsWith("/.hvdcloud/{each}")' for each in ("events.jsonl", "state.json", "log")),
    )
)
"""The condition with which nodes may replace objects: what a run has and what is known of it, not its checkpoints.
Terraform's is the same (terraform/identity.tf)."""
STEPS = {"create": "write objects to", "read": "read the objects of", "replace": "replace the records of runs in"}
"""The steps of a node's proof (node/boot/bucket_proof.py), in words."""
_ROLES = (
    "--role=roles/storage.objectCreator --condition=None",
    "--role=roles/storage.objectViewer --condition=None",
    f"--role=roles/storage.objectUser --condition='title=hvdcloud-run-records,expression={RECORDS}'",
)
_REPOSITORY = re.compile(r"([a-z0-9-]+)-docker\.pkg\.dev/([^/]+)/([^/:@]+)/")


def bucket_grants(account: str, bucket: str) -> str:
    """The commands with which the bucket's owner grants all that nodes need."""
    binding = shlex.join([f"gs://{bucket}", f"--member=serviceAccount:{account}"])
    return " && ".join(f"gcloud storage buckets add-iam-policy-binding {binding} {role}" for role in _ROLES)


def pull_grant(account: str, image: str) -> str | None:
    """The command that lets nodes pull an image; None: it is not in Artifact Registry."""
    found = _REPOSITORY.match(image)
    if found is None:
        return None
    location, project, repository = map(shlex.quote, found.groups())
    return (
        f"gcloud artifacts repositories add-iam-policy-binding {repository} --location={location} --project={project} "
        f"--member=serviceAccount:{shlex.quote(account)} --role=roles/artifactregistry.reader"
    )
