"""`hvdcloud setup --destroy`: deletes what `setup` made, except what may still be needed.

A bucket that holds anything always stays: no checkpoint is lost. The project's APIs stay on, since others may use
them. What stays remains in Terraform's state, so that a later `setup` adopts it again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdcloud.errors import UsageError
from hvdcloud.interrupts import interrupted_once
from hvdcloud.setup.choices import find_project
from hvdcloud.setup.setup import Confirm, apply, bucket_contents, not_confirmed, work_folder, yaml_values
from hvdcloud.setup.terraform import Terraform, find_terraform, module_folder
from hvdcloud.setup.terraform_plan import API, BUCKET, SetupPlan, describe_all
from hvdcloud.units import counted

if TYPE_CHECKING:
    from hvdcloud.config.model import Config
    from hvdcloud.console import Console


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Something that stays, and why.

    Attributes:
        name: for people.
        delete_with: the command that deletes it by hand; "" if there is no reason to.
    """

    name: str
    reason: str
    dollars_per_month: float = 0.0
    delete_with: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DestroyResult:
    """What is gone, and what is left.

    Attributes:
        done: what was deleted, for people.
        dead_keys: hvdcloud.yaml's keys that now name something that is gone.
        planned: nothing was changed; `done` is what would be.
    """

    project: str
    done: Sequence[str]
    kept: Sequence[Kept]
    file: Path
    dead_keys: Sequence[str]
    planned: bool
    seconds: float

    @property
    def nothing_to_do(self) -> bool:
        return not self.done


def destroy(
    config: Config, file: Path, *, project: str | None, console: Console, confirm: Confirm, plan_only: bool = False
) -> DestroyResult:
    """Delete what `setup` made from this machine; with `plan_only`, only say what would be done.

    Raises:
        UsageError: there are clusters, which need it.
        HvdcloudError: as for `setup`.
    """
    started = time.monotonic()
    program = find_terraform()
    name = find_project(config, project)
    work = work_folder(name)
    done: Sequence[str] = ()
    dead: Sequence[str] = ()
    kept: list[Kept] = []
    with work.lock("setup --destroy"):
        terraform = Terraform(program, work, project=name, say=console.say)
        if terraform.has_state:
            _refuse_while_clusters_exist(config, name, console)
            outputs = terraform.outputs()
            work.prepare(module_folder())
            work.propose({**work.variables(), "project": name})
            with interrupted_once():
                terraform.init(upgrade=False)
                console.say(f"looking at what project {name} has")
                plan, kept = _plan(terraform)
            done = describe_all(plan)
            if done:
                for line in done:
                    console.say(f"  {line}")
                for stays in kept:
                    console.say(f"  = {stays.name}: {stays.reason}")
                if not plan_only:
                    if not confirm(f"Delete this from project {name}?"):
                        raise not_confirmed("setup --destroy")
                    apply(terraform, plan, console)
            dead = _dead_keys(config, outputs, plan)
    return DestroyResult(
        project=name,
        done=done,
        kept=kept,
        file=file,
        dead_keys=dead,
        planned=plan_only,
        seconds=time.monotonic() - started,
    )


def _plan(terraform: Terraform) -> tuple[SetupPlan, list[Kept]]:
    """What goes, and what stays."""
    from hvdcloud.providers.gce.money.prices import bucket_dollars_per_month

    plan = terraform.plan(destroy=True)
    buckets = [resource for resource in plan.there if resource.type == BUCKET]
    held = [(bucket, found) for bucket in buckets if (found := bucket_contents(bucket.id)) is not None]
    kept = [
        Kept(
            name=f"bucket gs://{bucket.id}",
            reason=found.text,
            dollars_per_month=bucket_dollars_per_month(size_bytes=found.size_bytes),
            delete_with=f"gcloud storage rm --recursive gs://{bucket.id}",
        )
        for bucket, found in held
    ]
    apis = [resource for resource in plan.there if resource.type == API]
    if apis:
        kept.append(Kept(name=f"{counted(len(apis), 'API')}", reason="others may use them; they cost nothing"))
    needed = {address for bucket, _ in held for address in bucket.depends_on}
    stays = {bucket.address for bucket, _ in held} | {api.address for api in apis}
    stays |= {resource.address for resource in plan.there if resource.address.partition("[")[0] in needed}
    targets = [resource.address for resource in plan.there if resource.address not in stays]
    if not targets:
        return SetupPlan(changes=(), names={}, outputs={}, outputs_change=False, there=plan.there), kept
    plan = terraform.plan(destroy=True, targets=targets)
    lost = [change.name for change in plan.changes if change.address in stays and change.type == BUCKET]
    if lost:  # Terraform takes along what depends on a target.
        message = f"{lost[0]} would be deleted too, and it is not empty"
        raise UsageError(message, hint="hvdcloud setup first, then --destroy again")
    return plan, kept


def _refuse_while_clusters_exist(config: Config, project: str, console: Console) -> None:
    from hvdcloud import providers

    gce = config.gce.model_copy(update={"project": project})
    there = config.model_copy(update={"provider": "gce", "gce": gce})
    listing = providers.connect(there, on_retry=console.say).list()
    if listing.clusters:
        names = ", ".join(cluster.name for cluster in listing.clusters)
        raise UsageError(
            f"project {project} still has {counted(len(listing.clusters), 'cluster')}: {names}",
            hint=f"hvdcloud down --name {listing.clusters[0].name} first; hvdcloud list shows them all",
        )
    if listing.unseen:
        raise listing.unseen_error()


def _dead_keys(config: Config, outputs: Mapping[str, Any], plan: SetupPlan) -> Sequence[str]:
    """Keys of hvdcloud.yaml whose values name something that goes."""
    gone = {change.type for change in plan.changes}
    made_by = {
        "gce.network": "google_compute_network",
        "gce.subnetwork": "google_compute_subnetwork",
        "gce.service_account": "google_service_account",
        "image.repository": "google_artifact_registry_repository",
        "checkpoints.bucket": BUCKET,
    }
    ours = yaml_values(outputs, config.name)
    keys = [key for key, kind in made_by.items() if kind in gone and key in ours]
    return [key for key in keys if attrgetter(key)(config) == ours[key]]
