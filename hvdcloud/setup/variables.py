"""The Terraform module's variables: the command line's and hvdcloud.yaml's, those chosen before, the defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdcloud.errors import UsageError
from hvdcloud.providers.gce.names import continent, region_of

if TYPE_CHECKING:
    from hvdcloud.config.model import Config

DEFAULT_REGION = "us-central1"
USER_VARIABLES_FILE = "hvdcloud.tfvars"
"""Beside hvdcloud.yaml, in Terraform's own form; what it says counts more than what is chosen here."""
# https://cloud.google.com/resource-manager/docs/creating-managing-projects
_PROJECT = re.compile(r"[a-z][a-z0-9-]{4,28}[a-z0-9]")


def find_project(config: Config, named: str | None) -> str:
    """`--project`, else gce.project, else the credentials' own.

    Raises:
        CredentialsError: there are no credentials.  UsageError: no project is named, or it can't be one.
    """
    from hvdcloud.google.credentials import google_credentials

    project = google_credentials(named or config.gce.project)[1]
    if not _PROJECT.fullmatch(project):
        raise UsageError(f"{project!r} is not a project id", hint="gcloud projects list shows yours")
    return project


def choose_variables(
    config: Config, project: str, before: Mapping[str, Any], *, regions: Sequence[str] = (), bucket: str | None = None
) -> dict[str, Any]:
    """What the module is applied with.

    Args:
        before: what it was applied with last; empty: never.
        regions: where nodes may be; the bucket and the images stay where they are, or come into the first one.
        bucket: its name, or URL.
    """
    zones = [region_of(zone) for zone in config.gce.zones]
    home: str = before.get("region") or next(iter(regions or zones), DEFAULT_REGION)
    ranges: Mapping[str, str] = before.get("other_regions") or {}
    found = regions or ([*ranges, *zones] if before else zones or _regions_with_gpu(config, near=home))
    return {
        "project": project,
        "region": home,
        "other_regions": _ranges([region for region in dict.fromkeys(found) if region != home], ranges),
        "bucket": bucket.removeprefix("gs://").rstrip("/") if bucket else before.get("bucket"),
        "self_delete": sorted({*before.get("self_delete", ()), config.name}),
    }


def user_variables(folder: Path) -> Path | None:
    """The user's own values of the module's variables, in the project's folder; None: there are none.

    Raises:
        UsageError: it is not a file of that folder.
    """
    file = folder / USER_VARIABLES_FILE
    if not (file.exists() or file.is_symlink()):
        return None
    if file.is_file() and file.resolve().is_relative_to(folder.resolve()):
        return file.resolve()
    raise UsageError(f"{file} is not a file of the project's folder", hint=f"put the values into {file} itself")


def _regions_with_gpu(config: Config, *, near: str) -> list[str]:
    """Those of the same continent that have the configured GPU; without a GPU one region is enough."""
    from hvdcloud.providers.gce.money import catalog

    gce = config.gce
    try:
        gpu, _ = catalog.gpus_of(gce.machine_type, gce.gpu.type if gce.gpu else None, gce.gpu.count if gce.gpu else 0)
        zones = catalog.zones_with(gpu) if gpu else ()
    except UsageError:  # That the table does not know it, `up` says.
        return []
    return sorted({region_of(zone) for zone in zones if continent(zone) == continent(near)})


def _ranges(regions: Sequence[str], before: Mapping[str, str]) -> dict[str, str]:
    """The range of each region's subnetwork; one that has a range keeps it."""
    used = {before[region] for region in regions if region in before}
    free = (f"10.10.{third}.0/20" for third in range(16, 256, 16))
    unused = (each for each in free if each not in used)
    try:
        return {region: before.get(region) or next(unused) for region in regions}
    except StopIteration:
        hint = "--region for each of those that you want"
        raise UsageError(f"{len(regions) + 1} regions are more than the network has ranges for", hint=hint) from None
