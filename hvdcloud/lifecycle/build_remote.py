"""`hvdcloud build --remote`: Google Cloud Build builds and pushes the image, through `gcloud builds submit`."""

from __future__ import annotations

import gzip
import json
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hvdcloud.doctor.machine import check_gpus
from hvdcloud.errors import ImageError, UsageError
from hvdcloud.google.registry_hosts import registry_region
from hvdcloud.image.build.registry_cache import tag_of
from hvdcloud.image.plan.context import Context as BuildContext
from hvdcloud.image.plan.context import Entry
from hvdcloud.image.plan.steps import plan_image
from hvdcloud.image.publish.registry import digest_at_registry, target_of
from hvdcloud.interrupts import interrupted_once
from hvdcloud.lifecycle.build import BuildOutcome, needs_of, repository_of, warn_of_private_files
from hvdcloud.storage.base import disk_error

if TYPE_CHECKING:
    from hvdcloud.image.plan.context import Step
    from hvdcloud.lifecycle.context import Context

MACHINE = "x86_64"  # Of Cloud Build's machines, and of every VM with a GPU that the images are for.
BUILD_FILE = {
    "steps": [{"name": "gcr.io/cloud-builders/docker", "entrypoint": "bash", "args": ["build.sh"]}],
    # Compiling Horovod uses every core and may take more than an hour; a CUDA build holds its donor and three images.
    "timeout": "7200s",
    "options": {"machineType": "E2_HIGHCPU_8", "diskSizeGb": "200"},
}


def build_remote(context: Context) -> BuildOutcome:
    """Let Cloud Build build what the configuration asks for and push it; with the same content as before, do nothing.

    Raises:
        UsageError: image.repository is not set, there is no gcloud, or a file that the configuration names is missing.
        CredentialsError, ImageError: the registry refuses us or cannot be reached, or gcloud failed and has said why.
    """
    started, config = time.monotonic(), context.config
    repository = repository_of(config)
    if shutil.which("gcloud") is None:
        hint = "install it (https://cloud.google.com/sdk/docs/install); or hvdcloud build --push builds here"
        raise UsageError("build --remote needs gcloud, which is not on this machine's PATH", hint=hint)
    check_gpus(config, context.platform)
    warn_of_private_files(context)
    plan = plan_image(config.image, project_dir=config.project_dir, machine=MACHINE, needs=needs_of(context))
    target = target_of(plan.reference, repository)
    digest = digest_at_registry(target)
    cached = digest is not None
    if not cached:
        names = {step.reference: f"{target.rpartition(':')[0]}:{tag_of(step)}" for step in plan.steps}
        todo = [step for step in plan.steps if step is plan.last or not digest_at_registry(names[step.reference])]
        with tempfile.TemporaryDirectory(prefix="hvdcloud-build-") as work:
            try:
                # Wheels are compressed already.
                with gzip.open(Path(work, "source.tgz"), "wb", compresslevel=1) as archive:
                    source_of(todo, names, target).write(archive)
                Path(work, "cloudbuild.json").write_text(json.dumps(BUILD_FILE))
            except OSError as error:
                raise disk_error(error, path=Path(work), doing="packing the build's source into") from error
            _run(submit(Path(work), config.gce.project, repository))
        digest = digest_at_registry(target)
    took = time.monotonic() - started
    return BuildOutcome(reference=plan.reference, tag=target, digest=digest, cached=cached, seconds=took)


def source_of(todo: Sequence[Step], names: dict[str, str], target: str) -> BuildContext:
    """The contexts of the steps, a folder for each, and the script that builds them; the last image is `target` too.

    Each is pushed at once: a requirement that can't be installed must not cost the compilation that went before.
    """
    lines, entries = ["set -e", "export DOCKER_BUILDKIT=1"], []
    for step in todo:
        folder = tag_of(step)
        tags = dict.fromkeys([names[step.reference], *([target] if step is todo[-1] else [])])
        words = ["docker", "build", "--file", f"{folder}/{step.dockerfile}", *(f"--tag={tag}" for tag in tags)]
        words += [f"--target={step.target}"] if step.target else []
        words += [f"--build-arg={key}={names.get(value, value)}" for key, value in step.arguments.items()]
        words += [f"--label={key}={value}" for key, value in step.labels.items()]
        lines += [shlex.join([*words, folder]), *(shlex.join(["docker", "push", tag]) for tag in tags)]
        for entry in (*step.context.hashed, *step.context.unhashed):
            # Certificates are for this machine's network and stay here.
            sent = replace(entry, source=None, content=b"") if entry.path == "ca-bundle.crt" else entry
            entries.append(replace(sent, path=f"{folder}/{entry.path}"))
    return BuildContext(hashed=(Entry(path="build.sh", content="\n".join(lines).encode()), *entries))


def submit(work: Path, project: str | None, repository: str) -> list[str]:
    """The command line of gcloud. It builds in the region of Artifact Registry that `repository` names, or anywhere."""
    command = ["gcloud", "builds", "submit", f"{work}/source.tgz", f"--config={work}/cloudbuild.json"]
    command += [f"--project={project}"] if project else []
    return [*command, f"--region={registry_region(repository) or 'global'}"]


def _run(command: Sequence[str]) -> None:
    """Run gcloud, which shows the build, on standard error; not in the project's folder, whose files it would read."""
    with interrupted_once(), subprocess.Popen(command, stdout=2, cwd="/") as process:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise
    if code != 0:
        message = f"the image was not built: gcloud builds submit ended with exit code {code}; what it says is above"
        raise ImageError(message, hint="correct what gcloud names; hvdcloud build --remote goes on after what is done")
