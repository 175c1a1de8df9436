"""A stand-in of Google's Terraform provider: README.md.

In a test:

    environment = stand_in(tmp_path)
    subprocess.run(["terraform", f"-chdir={module}", "init"], env={**os.environ, **environment}, check=True)
"""

from __future__ import annotations

import json
import platform
import shlex
import shutil
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
MODULE = ROOT / "terraform"
VENV = ROOT / ".cache/terraform"
VERSION = "8.2.0"
TIME_VERSION = "0.13.1"


def stand_in(folder: Path, *, compute: str | None = None, storage: str | None = None) -> dict[str, str]:
    """Install the stand-in, so that Terraform finds it and nothing else.

    Args:
        folder: where it is put; the project that it makes things in is kept below, and outlives Terraform.
        compute: URL of the Compute Engine emulator, which is to have the network and the firewall rules too.
        storage: URL of the stand-in of Cloud Storage, which is to have the bucket too.

    Returns:
        The environment variables that Terraform needs for it.
    """
    place = folder.resolve() / "terraform"
    if not (VENV / "bin/python").exists():
        raise RuntimeError(f"there is no {VENV}, which the stand-in runs in: make {VENV.relative_to(ROOT)}/.complete")
    processor = "amd64" if platform.machine() in ("x86_64", "AMD64") else "arm64"
    system = f"{platform.system().lower()}_{processor}"
    (place / "home").mkdir(parents=True, exist_ok=True)
    more = [f"--compute={compute}"] if compute else []
    more += [f"--storage={storage}"] if storage else []
    for name, version, options in (("google", VERSION, more), ("time", TIME_VERSION, ["--time"])):
        package = place / f"mirror/registry.terraform.io/hashicorp/{name}/{version}/{system}"
        package.mkdir(parents=True, exist_ok=True)
        command = [str(VENV / "bin/python"), "-m", "tests.standins.terraform.provider", str(place), *options]
        program = package / f"terraform-provider-{name}_v{version}"
        # HOME: the plumbing keeps a certificate there.
        program.write_text(
            f"#!/bin/sh\nexport PYTHONPATH={shlex.quote(str(ROOT))} HOME={shlex.quote(str(place / 'home'))}\n"
            f"exec {shlex.join(command)}\n"
        )
        program.chmod(0o755)
    settings = place / "terraform.rc"
    settings.write_text(
        f'provider_installation {{\n  filesystem_mirror {{\n    path = "{place / "mirror"}"\n  }}\n}}\n'
    )
    return {
        "TF_CLI_CONFIG_FILE": str(settings),
        "TF_IN_AUTOMATION": "1",
        "TF_INPUT": "0",
        # Terraform does not check for a newer Terraform.
        "CHECKPOINT_DISABLE": "1",
    }


def missing() -> str | None:
    """Why there can't be a test of terraform/ here; None if there can."""
    return None if shutil.which("terraform") else "there is no terraform on this machine"


def resources(folder: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """Everything that is in the project now: kind → id → attributes. `folder` as for `stand_in`."""
    path = folder.resolve() / "terraform/cloud.json"
    found: dict[str, dict[str, dict[str, Any]]] = json.loads(path.read_text()) if path.exists() else {}
    return {kind: each for kind, each in found.items() if each and kind.startswith("google_")}


def bucket_of_another(folder: Path, *names: str) -> None:
    """Let these buckets exist, which Terraform has not made. `folder` as for `stand_in`."""
    (folder.resolve() / "terraform/buckets.json").write_text(json.dumps(names))


def fail(folder: Path, kind: str) -> None:
    """Let Google refuse to create resources of one kind, such as google_compute_network: a permission is missing."""
    path = folder.resolve() / "terraform/faults.json"
    path.write_text(json.dumps([kind]))


def disable(folder: Path, times: int) -> None:
    """Let so many plans fail: an API that was enabled a moment ago does not answer yet."""
    (folder.resolve() / "terraform/disabled.json").write_text(json.dumps(times))


def heal(folder: Path) -> None:
    """No faults any more."""
    (folder.resolve() / "terraform/faults.json").unlink(missing_ok=True)
