"""What `hvdcloud setup` asks Terraform for: the command line's choices, those made before, and the defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hvdcloud.errors import UsageError
from hvdcloud.providers.gce.names import region_of

if TYPE_CHECKING:
    from hvdcloud.config.model import Config
    from hvdcloud.setup.terraform import WorkFolder

DEFAULT_REGION = "us-central1"
SOFT_DELETE_DAYS = 7
MOST_SELF_DELETING = 20
"""Conditional grants of one role to one account: https://cloud.google.com/iam/quotas"""
# https://cloud.google.com/resource-manager/docs/creating-managing-projects
_PROJECT = re.compile(r"[a-z][a-z0-9-]{4,28}[a-z0-9]")
_MEMBER = re.compile(r"(?:user|group|serviceAccount|domain|principal|principalSet):\S+")


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupOptions:
    """What the command line says; None: what was chosen before, else the default."""

    project: str | None = None
    regions: Sequence[str] | None = None
    """Where nodes may be; the bucket and the images stay in the region where they are, or come into the first one."""
    bucket: str | None = None
    nat: bool | None = None
    operators: Sequence[str] | None = None
    delete_after_days: int | None = None
    """0: never."""
    soft_delete_days: int | None = None
    """0: not at all."""
    budget_dollars: int | None = None
    """0: none."""
    billing_account: str | None = None
    data: Sequence[str] | None = None
    """Buckets and folders that nodes may read; they replace the list."""
    self_delete: bool | None = None


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
    """The module's variables: what the command line says, else what was chosen before, else the default.

    Raises:
        UsageError: one of them is not allowed.
    """
    before = work.variables()
    self_delete = options.self_delete
    if self_delete is None:
        self_delete = config.name not in work.choices().get("no_self_delete", ())
    region, others = _regions(config, options.regions or work.choices().get("regions"), before)
    return {
        **before,
        "project": project,
        "region": region,
        "other_regions": _ranges(others, before.get("other_regions") or {}),
        "bucket": _bucket_name(options.bucket) or before.get("bucket"),
        "nat": bool(before.get("nat", False)) if options.nat is None else options.nat,
        "operators": list(before.get("operators", ())) if options.operators is None else _members(options.operators),
        "data": list(before.get("data", ())) if options.data is None else _data(options.data),
        "self_delete": _granted(
            config.name,
            before.get("self_delete", ()),
            wanted=self_delete,
            what="nodes may delete themselves",
            hint="hvdcloud setup --no-self-delete: this cluster's nodes switch themselves off instead",
        ),
        "delete_after_days": (
            before.get("delete_after_days") if options.delete_after_days is None else options.delete_after_days or None
        ),
        "soft_delete_days": (
            before.get("soft_delete_days", SOFT_DELETE_DAYS)
            if options.soft_delete_days is None
            else _soft_delete_days(options.soft_delete_days)
        ),
        "budget": _budget(options, before.get("budget")),
    }


def remember_choices(work: WorkFolder, name: str, options: SetupOptions) -> None:
    """`--no-self-delete` holds for this cluster until `--self-delete`, and `--region` until it is given again."""
    if options.regions:
        work.remember(regions=list(options.regions))
    if options.self_delete is None:
        return
    declined = set(work.choices().get("no_self_delete", ())) - {name}
    work.remember(no_self_delete=sorted(declined if options.self_delete else {*declined, name}))


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


def _granted(name: str, before: Sequence[str], *, wanted: bool | None, what: str, hint: str) -> list[str]:
    """The clusters that have a role, with or without this one; None: as before."""
    names = sorted({*before, name} if wanted else {*before} - ({name} if wanted is False else set()))
    if len(names) > MOST_SELF_DELETING:
        raise UsageError(f"{MOST_SELF_DELETING} clusters' {what} already, and IAM takes no more", hint=hint)
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


def _soft_delete_days(days: int) -> int:
    # https://cloud.google.com/storage/docs/soft-delete
    if days and not 7 <= days <= 90:
        raise UsageError(f"--soft-delete-days: {days} is not what Google takes", hint="7 to 90 days, or 0 for none")
    return days


def _members(given: Sequence[str]) -> list[str]:
    members = [member for member in given if member]
    for member in members:
        if not _MEMBER.fullmatch(member):
            message = f"--operator: {member!r} is not a member of a project"
            raise UsageError(message, hint="--operator user:ANN@EXAMPLE.COM, group:… or serviceAccount:…")
    return list(dict.fromkeys(members))


def _data(given: Sequence[str]) -> list[str]:
    urls = [url.rstrip("/") for url in given if url]
    for url in urls:
        # What is in the condition of a grant has no quotation mark.
        if not re.fullmatch(r'gs://[a-z0-9][a-z0-9_.-]{1,220}[a-z0-9](?:/[^/"\\\x00-\x1f\x7f]+)*', url):
            message = f"--data: {url!r} is no bucket and no folder of one that a grant can name"
            raise UsageError(message, hint="--data gs://BUCKET or --data gs://BUCKET/FOLDER")
    found = list(dict.fromkeys(urls))
    if len(found) > MOST_SELF_DELETING:
        hint = "--data gs://BUCKET of all of them"
        raise UsageError(f"--data: IAM takes no more than {MOST_SELF_DELETING} folders", hint=hint)
    return found


def _budget(options: SetupOptions, before: Mapping[str, Any] | None) -> dict[str, Any] | None:
    before = before or {}
    dollars = options.budget_dollars if options.budget_dollars is not None else before.get("dollars")
    account = options.billing_account or before.get("billing_account")
    if not dollars:
        if options.billing_account and options.budget_dollars is None:
            raise UsageError("--billing-account is only for a budget", hint="give --budget DOLLARS too")
        return None
    if not account:
        message = "--budget needs the billing account that it is a part of"
        raise UsageError(message, hint="gcloud billing accounts list shows yours: --billing-account ID")
    return {**before, "billing_account": account, "dollars": dollars}
