"""Labels that say what an image was made from: the project's source and revision, and the versions in it.

They are not part of the image's content: its tag stays the same. An existing image keeps the revision that
it was first built from, which is right as long as its content is the same.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import hvdcloud
from hvdcloud.git import git, without_filters

# https://github.com/opencontainers/image-spec/blob/v1.1.1/annotations.md
# `created` is not among ours: the same content would be another image every time; the engine notes the time itself.
_SOURCE = "org.opencontainers.image.source"
_REVISION = "org.opencontainers.image.revision"
# Containers inherit labels: none of those that mark a cluster's objects (hvdcloud-cluster, …) begins like this.
VERSION_PREFIX = "hvdcloud-image-"
# A name that git takes for a host in `host:path`, with or without a user.
_SCP_LIKE = re.compile(r"(?P<host>[^/:]+):/*(?P<path>.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a project's files come from.

    Attributes:
        url: of the repository, without credentials; None if it has none that others can reach.
        revision: the commit; `-dirty` is added if files of the project are not as it has them.
    """

    url: str | None
    revision: str


def version_labels(versions: Mapping[str, str | None]) -> dict[str, str]:
    """Labels for the versions in an image (`torch`, `horovod`, …; those without a value left out), and hvdcloud's."""
    found = {"builder": f"hvdcloud {hvdcloud.__version__}", **versions}
    return {f"{VERSION_PREFIX}{name}": value for name, value in found.items() if value}


def source_labels(project_dir: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Labels for where a project comes from; none if neither a CI service's variables nor git say so."""
    source = source_of(project_dir, environment)
    if source is None:
        return {}
    return {_REVISION: source.revision} | ({_SOURCE: source.url} if source.url else {})


def source_of(project_dir: Path, environment: Mapping[str, str]) -> Source | None:
    """What GitHub's or GitLab's CI says, else git; None if the project is in no repository."""
    return _from_ci(environment) or _from_git(project_dir)


def _from_ci(environment: Mapping[str, str]) -> Source | None:
    """GitHub and GitLab.

    https://docs.github.com/en/actions/reference/workflows-and-actions/variables
    https://docs.gitlab.com/ci/variables/predefined_variables/
    """
    known = environment.get
    if known("GITHUB_SHA") and known("GITHUB_REPOSITORY"):
        server = known("GITHUB_SERVER_URL", "https://github.com")
        return Source(url=public_url(f"{server}/{known('GITHUB_REPOSITORY')}"), revision=environment["GITHUB_SHA"])
    if known("CI_COMMIT_SHA") and known("CI_PROJECT_URL"):
        return Source(url=public_url(environment["CI_PROJECT_URL"]), revision=environment["CI_COMMIT_SHA"])
    return None


def _from_git(project_dir: Path) -> Source | None:
    revision = _git(project_dir, "rev-parse", "--verify", "HEAD")
    if not revision:
        return None
    changed = _git(project_dir, "status", "--porcelain", "--ignore-submodules=dirty", "--", ".", filters=False)
    remote = _git(project_dir, "remote", "get-url", "origin") or ""
    return Source(url=public_url(remote), revision=revision if changed == "" else f"{revision}-dirty")


def _git(folder: Path, *arguments: str, filters: bool = True) -> str | None:
    """What git prints; None if there is no git, or it fails, which in no repository it does."""
    try:
        done = git(folder, *arguments, environment={} if filters else without_filters(folder))
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else None


def public_url(remote: str) -> str | None:
    """A git remote as others may see it: without user, password, token or this machine's own paths.

    `git@HOST:PATH` becomes `ssh://git@HOST/PATH`: that user is part of the address and no secret.
    """
    short = _SCP_LIKE.fullmatch(remote)
    if short and "://" not in remote:
        remote = f"ssh://{short['host']}/{short['path']}"
    try:
        parts = urlsplit(remote)
        host, port, user = parts.hostname, parts.port, parts.username
    except ValueError:
        return None
    if parts.scheme not in ("http", "https", "ssh", "git") or not host:
        return None
    where = f"[{host}]" if ":" in host else host
    where += f":{port}" if port else ""
    if parts.scheme == "ssh" and user:
        where = f"{user}@{where}"
    return urlunsplit((parts.scheme, where, parts.path, "", ""))
