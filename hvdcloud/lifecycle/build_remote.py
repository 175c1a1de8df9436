"""`hvdcloud build --remote`: Google Cloud Build builds and pushes the image, through `gcloud builds submit`."""

from __future__ import annotations

import gzip
import json
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdcloud.doctor.gpus import check_gpus, needs_of
from hvdcloud.errors import ImageError, InterruptedByUserError, UsageError
from hvdcloud.google.registry_hosts import registry_region
from hvdcloud.image.build.registry_cache import tag_of
from hvdcloud.image.plan.context import Context as BuildContext
from hvdcloud.image.plan.steps import plan_image
from hvdcloud.image.publish import registry
from hvdcloud.image.publish.registry import target_of
from hvdcloud.interrupts import interrupted_once
from hvdcloud.lifecycle.build import BuildOutcome, push_repository, warn_of_private_files
from hvdcloud.storage.base import disk_error

if TYPE_CHECKING:
    from hvdcloud.image.plan.steps import ImagePlan, Step
    from hvdcloud.lifecycle.context import Context

MACHINE = "x86_64"
"""The processor of Cloud Build's machines, and of every VM with a GPU that Horovod's images are for."""
_DOCKER = "gcr.io/cloud-builders/docker"
# Compiling Horovod uses every core and may take more than an hour; a CUDA build holds its donor and three images.
_SETTINGS = {"timeout": "7200s", "options": {"machineType": "E2_HIGHCPU_8", "diskSizeGb": "200"}}


def build_remote(context: Context, *, cache_from: str | None = None, cache_to: str | None = None) -> BuildOutcome:
    """Let Cloud Build build what the configuration asks for and push it; with the same content as before, do nothing.

    `cache_from` and `cache_to` are refused: they are for images of this machine.

    Raises:
        UsageError: image.repository is not set, there is no gcloud, or a file that the configuration names is missing.
        CredentialsError: the registry refuses us.
        ImageError: gcloud failed, in words that it has shown; or the registry cannot be reached.
        InterruptedByUserError: Ctrl-C, which gcloud gets too.
    """
    started = time.monotonic()
    config = context.config
    if cache_from is not None or cache_to is not None:
        message = "--cache-from and --cache-to are for images that this machine builds; with --remote it builds none"
        raise UsageError(message, hint="leave them out (image.repository is the cache), or --remote")
    repository = push_repository(config)
    gcloud = shutil.which("gcloud")
    if gcloud is None:
        hint = "install it (https://cloud.google.com/sdk/docs/install); or hvdcloud build --push builds here"
        raise UsageError("build --remote needs gcloud, which is not on this machine's PATH", hint=hint)
    check_gpus(config)
    warn_of_private_files(context)
    plan = plan_image(config.image, project_dir=config.project_dir, machine=MACHINE, needs=needs_of(config))
    names = names_of(plan, repository)
    target = registry.target_of(plan.reference, repository)
    digest = registry.digest_at_registry(target)
    cached = digest is not None
    if digest is None:
        todo = [
            step for step in plan.steps if step is plan.last or not registry.digest_at_registry(names[step.reference])
        ]
        with tempfile.TemporaryDirectory(prefix="hvdcloud-build-") as work:
            _pack(todo, Path(work), keep_ca_bundle=config.image.ca_bundle is not None)
            Path(work, "cloudbuild.json").write_text(json.dumps(build_file(todo, names=names, target=target)))
            _run([gcloud, *submit(Path(work), config.gce.project, repository)], plan.reference)
        digest = registry.digest_at_registry(target)
        if digest is None:
            message = f"Cloud Build succeeded, but {target} is not at the registry"
            raise ImageError(message, hint="hvdcloud build --remote builds it again")
    return BuildOutcome(
        reference=plan.reference,
        image_id="",
        tag=target,
        digest=digest,
        cached=cached,
        seconds=time.monotonic() - started,
    )


def names_of(plan: ImagePlan, repository: str) -> dict[str, str]:
    """Reference of each step → `HOST/PATH:TAG`, with the tag by which `--cache-from` knows its image too."""
    path = target_of(plan.reference, repository).rpartition(":")[0]
    return {step.reference: f"{path}:{tag_of(step)}" for step in plan.steps}


def build_file(todo: Sequence[Step], *, names: Mapping[str, str], target: str) -> dict[str, Any]:
    """What cloudbuild.yaml says (https://cloud.google.com/build/docs/build-config-file-schema).

    Args:
        todo: the steps whose images are not at the registry, in order; the last one's is the image that is wanted.
        target: where that goes.
    """
    steps: list[dict[str, Any]] = []
    for step in todo:
        name = names[step.reference]
        tags = dict.fromkeys([name, *([target] if step is todo[-1] else [])])
        arguments = ["build", "--file", step.dockerfile, *(word for tag in tags for word in ("--tag", tag))]
        arguments += ["--target", step.target] if step.target else []
        for key, value in step.arguments.items():
            arguments += ["--build-arg", f"{key}={names.get(value, value)}"]
        for key, value in step.labels.items():
            arguments += ["--label", f"{key}={value}"]
        # A dollar sign would be one of Cloud Build's own substitutions.
        arguments = [word.replace("$", "$$") for word in (*arguments, ".")]
        # Pushed at once: a requirement that can't be installed must not cost the compilation that went before.
        steps += [{"name": _DOCKER, "env": ["DOCKER_BUILDKIT=1"], "dir": _folder(step), "args": arguments}]
        steps += [{"name": _DOCKER, "args": ["push", name]}] if name != target else []
    return {"steps": steps, "images": [target], **_SETTINGS}


def submit(work: Path, project: str | None, repository: str) -> list[str]:
    """The arguments for gcloud. It builds in the region of Artifact Registry that `repository` names, else anywhere."""
    arguments = ["builds", "submit", str(work / "source.tgz"), f"--config={work / 'cloudbuild.json'}"]
    arguments += [f"--project={project}"] if project else []
    return [*arguments, f"--region={registry_region(repository) or 'global'}"]


def _pack(todo: Sequence[Step], work: Path, *, keep_ca_bundle: bool) -> None:
    """Write the contexts of the steps, a folder for each, to `source.tgz`."""
    entries = []
    for step in todo:
        for entry in (*step.context.hashed, *step.context.unhashed):
            # Certificates that only this machine's network needs stay here.
            sent = (
                entry if keep_ca_bundle or entry.path != "ca-bundle.crt" else replace(entry, source=None, content=b"")
            )
            entries.append(replace(sent, path=f"{_folder(step)}/{entry.path}"))
    file = work / "source.tgz"
    try:
        # Wheels are compressed already.
        with gzip.open(file, "wb", compresslevel=1) as archive:
            BuildContext(hashed=tuple(entries)).write(archive)
    except OSError as error:
        raise disk_error(error, path=file, doing="packing the build's source into") from error


def _folder(step: Step) -> str:
    """`builder-TAG` of `hvdcloud/builder:TAG`."""
    return step.reference.rpartition("/")[2].replace(":", "-")


def _run(command: Sequence[str], reference: str) -> None:
    """Run gcloud, which shows the build, on standard error; not in the project's folder, whose files it would read."""
    with interrupted_once(), subprocess.Popen(command, stdout=2, cwd="/") as process:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            # It cancels the build, if there is one yet. Where no terminal told it, this does.
            process.send_signal(signal.SIGINT)
            process.wait()
            where = " ".join(word for word in command if word.startswith(("--project", "--region")))
            raise InterruptedByUserError(
                f"interrupted; gcloud says above whether the build of {reference} is cancelled",
                hint=f"gcloud builds list --ongoing {where} shows it, gcloud builds cancel ID {where} cancels it",
            ) from None
    if code != 0:
        raise ImageError(
            f"{reference} was not built: gcloud builds submit ended with exit code {code}; what it says is above",
            hint="correct what gcloud names, then hvdcloud build --remote continues after the steps that are done",
        )
