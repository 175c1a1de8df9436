"""Labels that say what an image was made from: the project's revision, and the versions in it.

They are not part of the image's content: its tag stays the same. An existing image keeps the revision that
it was first built from, which is right as long as its content is the same.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import hvdcloud
from hvdcloud.git import git, without_filters

# https://github.com/opencontainers/image-spec/blob/v1.1.1/annotations.md
# `created` is not among ours: the same content would be another image every time; the engine notes the time itself.
_SOURCE = "org.opencontainers.image.source"
_REVISION = "org.opencontainers.image.revision"
# Containers inherit labels: none of those that mark a cluster's objects (hvdcloud-cluster, …) begins like this.
VERSION_PREFIX = "hvdcloud-image-"


def version_labels(versions: Mapping[str, str | None]) -> dict[str, str]:
    """Labels for the versions in an image (`torch`, `horovod`, …; those without a value left out), and hvdcloud's."""
    found = {"builder": f"hvdcloud {hvdcloud.__version__}", **versions}
    return {f"{VERSION_PREFIX}{name}": value for name, value in found.items() if value}


def source_labels(project_dir: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Labels for the commit of a project, with `-dirty` if files of it are not as the commit has them; none outside of
    a repository. A job of GitHub Actions also says which repository that is."""
    revision = _git(project_dir, "rev-parse", "--verify", "HEAD")
    if not revision:
        return {}
    changed = _git(project_dir, "status", "--porcelain", "--ignore-submodules=dirty", "--", ".", filters=False)
    labels = {_REVISION: revision if changed == "" else f"{revision}-dirty"}
    # GitHub's registry shows an image beside the repository that this label names.
    if repository := environment.get("GITHUB_REPOSITORY"):
        labels[_SOURCE] = f"{environment.get('GITHUB_SERVER_URL', 'https://github.com')}/{repository}"
    return labels


def _git(folder: Path, *arguments: str, filters: bool = True) -> str | None:
    """What git prints; None if there is no git, or it fails, which in no repository it does."""
    try:
        done = git(folder, *arguments, environment={} if filters else without_filters(folder))
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else None
