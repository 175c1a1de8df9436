"""`hvdcloud setup`: what a Google Cloud project needs before its first cluster, and its names in hvdcloud.yaml.

Network, bucket, image repository and the nodes' service account cost nothing while idle and outlive every run, so
Terraform owns them: it knows what there is, changes only what differs, and can be asked before it does. What costs
money by the hour stays out of it, so that `down` never depends on a state file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdcloud.cluster.files import state_root
from hvdcloud.config.yaml_edit import Change, edit_file, set_keys
from hvdcloud.errors import HvdcloudError, InterruptedByUserError, UsageError
from hvdcloud.google.grants import remember_grants
from hvdcloud.interrupts import interrupted_once
from hvdcloud.providers.gce.names import region_of
from hvdcloud.setup.choices import SetupOptions, choose_variables, find_project, remember_choices, user_variables
from hvdcloud.setup.terraform import VARIABLES_FILE, Terraform, WorkFolder, find_terraform, module_folder
from hvdcloud.setup.terraform_errors import AlreadyThereError, ApiOffError
from hvdcloud.setup.terraform_plan import API, BUCKET, Action, SetupPlan, describe_all
from hvdcloud.units import counted, size

if TYPE_CHECKING:
    from hvdcloud.config.model import Config
    from hvdcloud.console import Console

API_PAUSES = (2.0, 8.0, 20.0, 30.0, 60.0)
"""Seconds between attempts to use an API that was switched on only now."""

COUNTED_OBJECTS = 100_000
"""A bucket with more is not counted to its end: that takes minutes."""
BUCKET_SECONDS = 15.0
"""How long requests to a bucket that does not answer are repeated; then it counts as one that holds something."""
Confirm = Callable[[str], bool]
# The module's outputs, and hvdcloud.yaml's keys for them.
_KEYS = {
    **{name: f"gce.{name}" for name in ("project", "network", "subnetwork", "service_account")},
    "repository": "image.repository",
    "bucket": "checkpoints.bucket",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a bucket holds; with `unknown`, it could not be looked at."""

    objects: int
    size_bytes: int
    unknown: str = ""

    @property
    def text(self) -> str:
        """`it holds 12 objects, 3.4 GB`."""
        if self.unknown:
            return f"what it holds cannot be seen: {self.unknown}"
        more = "more than " if self.objects >= COUNTED_OBJECTS else ""
        return f"it holds {more}{counted(self.objects, 'object')}, {size(self.size_bytes)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupResult:
    """What was done.

    Attributes:
        done: what changed in the project, for people.
        region: of the bucket and the images; `regions`: where nodes may be.
        outputs: the module's; what is not known before it is done is left out.
        keys: what changed in `file`, hvdcloud.yaml.
        planned: nothing was changed; `done` and `keys` are what would be.
    """

    project: str
    region: str
    regions: Sequence[str]
    done: Sequence[str]
    outputs: Mapping[str, Any]
    file: Path
    keys: Sequence[Change]
    planned: bool
    seconds: float

    @property
    def nothing_to_do(self) -> bool:
        return not self.done and not self.keys


def setup(
    config: Config,
    file: Path,
    options: SetupOptions,
    *,
    console: Console,
    confirm: Confirm,
    plan_only: bool = False,
) -> SetupResult:
    """Set the project up, or correct what has changed since, and write its names into hvdcloud.yaml.

    What was made from here while Terraform or this machine died is adopted.

    Args:
        confirm: asked before anything is changed in the project.
        plan_only: only say what would be done.

    Raises:
        UsageError: there is no Terraform, the file cannot be edited, or something of the same name exists.
        CredentialsError: credentials, permissions, APIs or billing.  CapacityError: quota.
        NodeError: Google or Terraform's registry do not answer.
        InterruptedByUserError: Ctrl-C, or it was not confirmed.
    """
    started = time.monotonic()
    _check_file(config, file)
    program, module = find_terraform(), module_folder()
    project = find_project(config, options.project)
    work = work_folder(project)
    with work.lock("setup"):
        variables = choose_variables(config, project, options, work)
        own = user_variables(config.project_dir)
        terraform = Terraform(program, work, project=project, say=console.say, user_variables=own)
        plan = _plan(terraform, work, module, variables, console=console)
        _refuse_to_lose_the_bucket(plan)
        _show(plan, terraform, console)
        done = describe_all(plan)
        outputs: Mapping[str, Any] = plan.outputs
        if not plan_only:
            if not plan.empty and not confirm(f"Do this in project {project}?"):
                raise not_confirmed("setup")
            work.accept()
            remember_choices(work, options)
            if not plan.empty or plan.outputs_change:
                begun = {*work.choices().get("begun", ()), *terraform.begun()}
                work.remember(begun=sorted(begun))
                try:
                    _apply_all(terraform, plan, console, may_adopt=begun, confirm=confirm)
                finally:
                    if any("_iam_" in change.type for change in plan.changes):
                        remember_grants(project)
                work.remember(begun=[])
            outputs = terraform.outputs()
    values = yaml_values(outputs, config.name)
    keys = set_keys(file.read_text(encoding="utf-8"), values)[1] if plan_only else edit_file(file, values)
    region = str(outputs.get("region", variables["region"]))
    regions = sorted(outputs.get("regions") or {region, *variables["other_regions"]})
    _warn_of_other_regions(config, regions, console)
    return SetupResult(
        project=project,
        region=region,
        regions=regions,
        done=done,
        outputs=outputs,
        file=file,
        keys=keys,
        planned=plan_only,
        seconds=time.monotonic() - started,
    )


def work_folder(project: str) -> WorkFolder:
    """Where this machine keeps what it set up in a project. No cluster can have a name that begins with `_`."""
    return WorkFolder(state_root() / "_setup" / project)


def yaml_values(outputs: Mapping[str, Any], name: str) -> dict[str, str]:
    """hvdcloud.yaml's keys for these outputs; those that are not known yet are left out."""
    below = ("image.repository", "checkpoints.bucket")  # Each cluster has a folder of its own there.
    found = {key: str(outputs[output]) for output, key in _KEYS.items() if outputs.get(output)}
    return {"provider": "gce", **{key: f"{value}/{name}" if key in below else value for key, value in found.items()}}


def apply(terraform: Terraform, plan: SetupPlan, console: Console) -> None:
    """Carry out a plan, saying each thing that is done."""
    verbs = {"create": "created", "update": "changed", "delete": "deleted"}
    kinds = {change.address: change.type for change in plan.changes}

    def on_event(event: Mapping[str, Any]) -> None:
        hook = event.get("hook", {})
        address = hook.get("resource", {}).get("addr", "")
        name = plan.names.get(address, "")
        seconds = int(hook.get("elapsed_seconds", 0))
        if event.get("type") == "apply_complete" and name:
            verb = "switched on" if kinds.get(address) == API else verbs.get(hook.get("action"), "done:")
            console.say(f"{verb} {name}" + (f" ({seconds} s)" if seconds else ""))
        elif event.get("type") == "apply_progress" and name:
            (console.detail if seconds % 30 else console.say)(f"{name} takes {seconds} s so far")

    with interrupted_once():
        terraform.apply(on_event=on_event)


def _apply_all(
    terraform: Terraform, plan: SetupPlan, console: Console, *, may_adopt: set[str], confirm: Confirm
) -> None:
    """Like `apply`, until it is done: what exists is adopted, and an API that was switched on waited for.

    Switching one on takes a minute to reach all of Google's servers:
    https://cloud.google.com/service-usage/docs/enable-disable

    Args:
        may_adopt: Terraform's addresses of what may be adopted.
    """
    pauses = list(API_PAUSES) if any(change.type == API for change in plan.changes) else []
    while True:
        try:
            apply(terraform, plan, console)
        except ApiOffError as error:
            if not pauses:
                raise
            console.say(f"{error.message}, or was switched on only now; trying again in {pauses[0]:.0f} s")
            with interrupted_once():
                time.sleep(pauses.pop(0))
                plan = terraform.plan(variables_file=VARIABLES_FILE)
        except AlreadyThereError as error:
            there = [address for address in error.addresses if address in plan.import_ids]
            if not there or not may_adopt.issuperset(error.addresses):
                raise
            with interrupted_once():
                for address in there:
                    console.say(f"adopting {plan.names[address]}, which already exists")
                    terraform.take_up(address, plan.import_ids[address])
                plan = terraform.plan(variables_file=VARIABLES_FILE)
            _refuse_to_lose_the_bucket(plan)
            if any(change.action is not Action.CREATE for change in plan.changes):
                _show(plan, terraform, console)
                if not confirm("What is there differs. Do this?"):
                    raise not_confirmed("setup") from None
        else:
            return


def _plan(
    terraform: Terraform, work: WorkFolder, module: Path, variables: Mapping[str, Any], *, console: Console
) -> SetupPlan:
    upgrade = work.prepare(module)
    work.propose(variables)
    if not (work.folder / ".terraform").exists():
        console.say("installing Terraform's provider for Google; about 100 MB, once")
    with interrupted_once():
        terraform.init(upgrade=upgrade)
        console.say(f"looking at what project {variables['project']} has")
        return terraform.plan()


def _show(plan: SetupPlan, terraform: Terraform, console: Console) -> None:
    if plan.empty:
        return
    for line in describe_all(plan):
        console.say(f"  {line}")
    if console.verbose:
        console.detail(terraform.plan_text())


def not_confirmed(command: str) -> InterruptedByUserError:
    """The error of a command whose plan the user did not confirm."""
    return InterruptedByUserError("not confirmed; nothing was changed", hint=f"hvdcloud {command}, when you are ready")


def _check_file(config: Config, file: Path) -> None:
    """Raises UsageError if the names could not be written into the file afterwards: it is missing, or not editable."""
    if not file.is_file():
        message = f"there is no {file} to write the names into"
        raise UsageError(message, hint="hvdcloud init writes a project; -c names another file")
    set_keys(file.read_text(encoding="utf-8"), yaml_values(dict.fromkeys(_KEYS, "VALUE"), config.name), name=str(file))


def bucket_contents(bucket: str) -> Held | None:
    """What a bucket holds; None: nothing."""
    from hvdcloud.storage.open import open_bucket

    objects = total = 0
    try:
        for found in open_bucket(f"gs://{bucket}", retry_seconds=BUCKET_SECONDS).list(""):
            objects, total = objects + 1, total + found.size
            if objects >= COUNTED_OBJECTS:
                break
    except HvdcloudError as error:
        return Held(objects=objects, size_bytes=total, unknown=error.message[:150])
    return Held(objects=objects, size_bytes=total) if objects else None


def _refuse_to_lose_the_bucket(plan: SetupPlan) -> None:
    """A bucket's name and region can't be changed, so Terraform would delete it and make another one.

    Raises:
        UsageError: it would, and the bucket holds something.
    """
    for change in plan.deleted(BUCKET):
        old = next((resource for resource in plan.there if resource.address == change.address), None)
        held = bucket_contents(old.id) if old else None
        if old and held:
            raise UsageError(
                f"bucket gs://{old.id} would be deleted for a new one ({', '.join(change.fields)}), but {held.text}",
                hint=f"keep --bucket {old.id} and its region, or first take out what is in it: "
                f"gcloud storage rm --recursive 'gs://{old.id}/**'",
            )


def _warn_of_other_regions(config: Config, regions: Sequence[str], console: Console) -> None:
    elsewhere = ", ".join(zone for zone in config.gce.zones if region_of(zone) not in regions)
    if elsewhere:
        there = ", ".join(regions)
        console.warn(f"gce.zones names {elsewhere}, but the subnetworks are in {there}: no node can be made there")
