"""`python -m tests.rehearse`: one experiment on Compute Engine as its user sees it, on stand-ins of Google's services.

The VMs are containers that boot the startup script as it is shipped, pull the image from a registry and run Horovod;
Terraform is the real one. Everything is removed afterwards, and what was not is printed. Exit code 1: a command failed,
or something was left.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.standins.terraform import missing, stand_in
from tests.support.cloud import PROJECT, Cloud, running_cloud
from tests.support.harness import HVDCLOUD, Project

NAME = "digits"


def main() -> int:
    """Run it; returns the exit code."""
    if reason := missing():
        sys.stderr.write(f"error: {reason}\n")
        return 2
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hvdcloud-rehearsal-") as folder:
        root = Path(folder)
        (root / "cloud").mkdir()
        say(
            "Google's services on this machine: Compute Engine, Cloud Storage, a registry. Nothing of this costs money."
        )
        with running_cloud(root / "cloud") as cloud:
            code = rehearse(cloud, root)
            left = cloud.left()
    say(f"{'Done' if code == 0 else 'It failed'} after {time.monotonic() - began:.0f} s")
    for each in left:
        sys.stderr.write(f"left: {each}\n")
    return 1 if left else code


def rehearse(cloud: Cloud, root: Path) -> int:
    """A person's commands, one after the other, up to the first that fails; returns its exit code, or 0."""
    project = Project(folder=root / NAME, state=root / "state", name=NAME, warm=False)
    terraform = stand_in(root / "terraform", compute=cloud.emulator.url, storage=cloud.storage.url)
    project.environ.update(
        {
            **cloud.environ,
            **terraform,
            "HVDCLOUD_GOOGLE_ENDPOINT": cloud.emulator.url,
            # Where the registry is; setup makes one at Google's.
            "HVDCLOUD_IMAGE__REPOSITORY": f"{cloud.registry}/hvdcloud/{NAME}",
        }
    )
    project.folder.mkdir()
    for said, command in (
        ("A new experiment", "init"),
        ("Once for a project: network, bucket, registry, service account", f"setup --yes --project {PROJECT}"),
        ("Is everything ready?", "doctor"),
        ("Where, on what, and for how much", "offers"),
        ("Two VMs boot, train, hand over their checkpoints, and are deleted", "launch"),
        ("What is left", "list"),
        ("And the project is as it was", "setup --destroy --yes"),
    ):
        say(said)
        sys.stdout.write(f"$ hvdcloud {command}\n")
        sys.stdout.flush()
        ended = subprocess.run([*HVDCLOUD, *shlex.split(command)], cwd=project.folder, env=project.env())
        if ended.returncode != 0:
            return ended.returncode
    return 0


def say(text: str) -> None:
    """Print what comes next, apart from what commands print."""
    sys.stdout.write(f"\n# {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
