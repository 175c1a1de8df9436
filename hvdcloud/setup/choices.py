"""What `hvdcloud setup` asks Terraform for: the command line's choices, those made before, and the defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdcloud.errors import UsageError
from hvdcloud.providers.gce.names import region_of
from hvdcloud.setup.terraform import VARIABLES_FILE, WorkFolder

if TYPE_CHECKING:
    from hvdcloud.config.model import Config

DEFAULT_REGION = "us-central1"
USER_VARIABLES_FILE = "hvdcloud.tfvars"
"""Beside hvdcloud.yaml, in Terraform's own form; what it says counts more than what is chosen here."""
MOST_SELF_DELETING = 20
"""Conditional grants of one role to one account: https://cloud.google.com/iam/quotas"""
# https://cloud.google.com/resource-manager/docs/creating-managing-projects
_PROJECT = re.compile(r"[a-z][a-z0-9-]{4,28}[a-z0-9]")


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupOptions:
    """What the command line says; None: what was chosen before, else the default."""

    project: str | None = None
    regions: Sequence[str] | None = None
    """Where nodes may be; the bucket and the images stay in the region where they are, or come into the first one."""
    bucket: str | None = None


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


def choose_variables(config: Config, project: str, options: SetupOptions, work: WorkFolder) -> dict[str, Any]:
    """The module's variables that hvdcloud chooses: what the command line says, else what was chosen before.

    Raises:
        UsageError: one of them is not allowed.
    """
    before = work.variables()
    region, others = _regions(config, options.regions or work.choices().get("regions"), before)
    return {
        "project": project,
        "region": region,
        "other_regions": _ranges(others, before.get("other_regions") or {}),
        "bucket": _bucket_name(options.bucket) or before.get("bucket"),
        "self_delete": _self_delete(
            config.name, before.get("self_delete", ()), remembered=work.folder / VARIABLES_FILE
        ),
    }


def remember_choices(work: WorkFolder, options: SetupOptions) -> None:
    """`--region` holds until it is given again."""
    if options.regions:
        work.remember(regions=list(options.regions))


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


def _regions(config: Config, named: Sequence[str] | None, before: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The region of the bucket and the images, and the others that nodes may be in."""
    of_zones = [region_of(zone) for zone in config.gce.zones]
    home: str = before.get("region") or next(iter(of_zones), DEFAULT_REGION)
    if named:
        home = home if home in named and before else named[0]
        found = [*named]
    else:
        found = [*(before.get("other_regions") or ()), *(of_zones or _regions_with_gpu(config, near=home))]
    for region in (home, *found):
        if not re.fullmatch(r"[a-z]+-[a-z]+[0-9]+", region):
            raise UsageError(f"{region!r} is not a region", hint="--region us-central1; gcloud compute regions list")
    return home, [region for region in dict.fromkeys(found) if region != home]


def _regions_with_gpu(config: Config, *, near: str) -> list[str]:
    """Those of the same continent that have the configured GPU; without a GPU one region is enough."""
    from hvdcloud.providers.gce.money import catalog
    from hvdcloud.providers.gce.money.transfer import continent

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


def _self_delete(name: str, before: Sequence[str], remembered: Path) -> list[str]:
    """The clusters whose nodes may delete themselves, and this one."""
    names = sorted({*before, name})
    if len(names) > MOST_SELF_DELETING:
        raise UsageError(
            f"{MOST_SELF_DELETING} clusters' nodes may delete themselves already, and IAM takes no more",
            hint=f"take those that are gone out of self_delete in {remembered}",
        )
    return names


def _bucket_name(given: str | None) -> str | None:
    if given is None:
        return None
    name = given.removeprefix("gs://").rstrip("/")
    # https://cloud.google.com/storage/docs/buckets#naming
    if not re.fullmatch(r"[a-z0-9][-_.a-z0-9]{1,61}[a-z0-9]", name):
        message = f"--bucket: {given!r} is not a bucket's name"
        raise UsageError(message, hint="3 to 63 characters a-z, 0-9, '-', '_' and '.'; without a folder in it")
    return name
