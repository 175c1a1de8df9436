"""`hvdcloud build --remote`."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from hvdcloud.errors import UsageError
from hvdcloud.interrupts import interrupted_once
from hvdcloud.lifecycle.context import BRIEF_RETRY_SECONDS

if TYPE_CHECKING:
    from hvdcloud.lifecycle.build import BuildOutcome
    from hvdcloud.lifecycle.context import Context
    from hvdcloud.storage.gcs import GcsBucket

MACHINE = "x86_64"
"""What Cloud Build runs on, and every VM with a GPU that Horovod's images are for."""


def build_remote(context: Context, *, cache_from: str | None = None, cache_to: str | None = None) -> BuildOutcome:
    """Let Cloud Build build what the configuration asks for and push it; with the same content as before, do nothing.

    `cache_from` and `cache_to` are refused: they are for images of this machine.

    Raises:
        UsageError: image.repository or a bucket of Cloud Storage is not set, or a file that the configuration names is
            missing.
        CredentialsError: the Cloud Build API is switched off, or a role is missing.
        ImageError: a step failed (details hold its last lines), or Cloud Build cannot be reached.
        InterruptedByUserError: Ctrl-C; the build is cancelled.
    """
    from hvdcloud.doctor.gpus import check_gpus, needs_of
    from hvdcloud.google.grants import settled_at
    from hvdcloud.image.cloudbuild.build import RemoteBuilder
    from hvdcloud.image.cloudbuild.client import connect
    from hvdcloud.image.plan.provenance import source_labels
    from hvdcloud.image.plan.steps import plan_image
    from hvdcloud.lifecycle.build import BuildOutcome, push_repository, shown_on, warn_of_private_files

    started = time.monotonic()
    config = context.config
    for flag, value in (("--cache-from", cache_from), ("--cache-to", cache_to)):
        if value is not None:
            raise UsageError(
                f"{flag} is for images that are built on this machine, with --remote there is none",
                hint=f"leave {flag} out (image.repository is the cache), or --remote",
            )
    repository = push_repository(config)
    check_gpus(config)
    bucket = _bucket(context)
    warn_of_private_files(context)
    plan = plan_image(config.image, project_dir=config.project_dir, machine=MACHINE, needs=needs_of(config))
    plan = plan.labelled(source_labels(config.project_dir, os.environ))
    remote, say = config.image.remote, context.console.say
    with interrupted_once(), context.console.steps() as steps:
        builder = RemoteBuilder(
            client=connect(project=config.gce.project, region=remote.region, endpoint=remote.endpoint, on_retry=say),
            bucket=bucket,
            log_bucket=_bucket(context, retry_seconds=BRIEF_RETRY_SECONDS),
            config=config.image,
            progress=shown_on(context.console, steps),
            settled_at=settled_at(config.gce.project),
        )
        result = builder.build(plan, repository=repository)
        steps.finish("image", "ready")
    return BuildOutcome(
        reference=plan.reference,
        image_id="",
        tag=result.reference,
        digest=result.digest,
        cached=result.cached,
        seconds=time.monotonic() - started,
    )


def _bucket(context: Context, *, retry_seconds: float | None = None) -> GcsBucket:
    """The bucket for checkpoints: Cloud Build gets its source through it, and writes its log there.

    Not the PROJECT_cloudbuild that gcloud uses: it may not exist yet, and another user who creates a bucket of that
    name first, in any project, would be sent the source.
    """
    from hvdcloud.storage.gcs import GcsBucket

    url = context.config.checkpoints.bucket or ""
    if not url.startswith("gs://"):
        raise UsageError(
            "Cloud Build gets its source through a bucket of Cloud Storage, and checkpoints.bucket names none",
            hint="set checkpoints.bucket to gs://BUCKET[/PREFIX] in hvdcloud.yaml",
        )
    bucket = context.bucket(retry_seconds=retry_seconds)
    assert isinstance(bucket, GcsBucket)
    return bucket
