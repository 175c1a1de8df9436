"""`hvdcloud setup`: what a Google Cloud project needs before its first cluster, and its names in hvdcloud.yaml.

Network, bucket, image repository and the nodes' service account cost nothing while idle and outlive every run, so
Terraform owns them. What costs money by the hour stays out of it, so that `down` never depends on a state file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdcloud.config.set_keys import Change, edit_file, set_keys
from hvdcloud.errors import UsageError
from hvdcloud.google.grants import remember_grants
from hvdcloud.providers.gce.names import region_of
from hvdcloud.setup.project import ENABLING_SECONDS, enable_first_apis, left_by_another_state
from hvdcloud.setup.terraform import Terraform
from hvdcloud.setup.variables import choose_variables, find_project, user_variables
from hvdcloud.units import counted

if TYPE_CHECKING:
    from hvdcloud.config.model import Config
    from hvdcloud.console import Console

# The module's outputs, and hvdcloud.yaml's keys for them.
_KEYS = {
    **{name: f"gce.{name}" for name in ("project", "network", "subnetwork", "service_account")},
    "repository": "image.repository",
    "bucket": "checkpoints.bucket",
}
# The bucket stays (prevent_destroy), and with it what it needs: the APIs, which others may use too. The role would be
# deleted with its name.
_STAYS = ("google_storage_bucket", "google_project_service", "google_project_iam_custom_role", "time_sleep", "data")
API_PAUSE_SECONDS = 10.0
"""At least, before a plan is tried again that failed because an API was enabled a moment ago."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupResult:
    """What was done.

    Attributes:
        outputs: the module's; empty if it was only planned.
        keys: what changed in `file`, hvdcloud.yaml.
        planned: nothing was changed; `changes`: whether something would be.
    """

    project: str
    outputs: Mapping[str, Any]
    file: Path
    keys: Sequence[Change]
    planned: bool = False
    changes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DestroyResult:
    """What was deleted.

    Attributes:
        deleted: Terraform's addresses; empty: there was nothing.
        bucket: that stays, as a URL; "": none does.
        planned: nothing was deleted.
    """

    project: str
    deleted: Sequence[str]
    bucket: str
    planned: bool


def setup(
    config: Config,
    file: Path,
    *,
    project: str | None,
    regions: Sequence[str],
    bucket: str | None,
    yes: bool,
    plan_only: bool,
    console: Console,
) -> SetupResult:
    """Set the project up, or correct what has changed since, and write its names into hvdcloud.yaml.

    Args:
        project: None: gce.project, else the credentials' own.
        regions: where nodes may be; empty: as before.
        bucket: None: as before, at first PROJECT-hvdcloud.
        yes: do not ask.
        plan_only: only show what would be done.

    Raises:
        UsageError: there is no Terraform, it failed, or the file cannot be edited.
        CredentialsError: there are none.
        InterruptedByUserError: Ctrl-C.
    """
    if not file.is_file():
        message = f"there is no {file} to write the names into"
        raise UsageError(message, hint="hvdcloud init writes a project; -c names another file")
    # Before anything is made: whether the names could be written into it afterwards.
    set_keys(file.read_text(encoding="utf-8"), yaml_values(dict.fromkeys(_KEYS, "VALUE"), config.name), name=str(file))
    project = find_project(config, project)
    terraform = Terraform(project, user_variables=user_variables(config.project_dir), for_script=console.as_json)
    with terraform.lock("setup"):
        variables = choose_variables(config, project, terraform.variables(), regions=regions, bucket=bucket)
        state = terraform.state()
        if not plan_only:
            enable_first_apis(project, say=console.say)
        try:
            with terraform.using(variables, keep=not plan_only, imports=left_by_another_state(project)):
                if plan_only:
                    changes = terraform.plan()
                    return SetupResult(project=project, outputs={}, file=file, keys=(), planned=True, changes=changes)
                _apply(terraform, yes=yes, console=console)
        finally:
            if terraform.state() != state:
                remember_grants(project)
        outputs = terraform.outputs()
    keys = edit_file(file, yaml_values(outputs, config.name))
    elsewhere = ", ".join(zone for zone in config.gce.zones if region_of(zone) not in outputs["regions"])
    if elsewhere:
        there = ", ".join(outputs["regions"])
        console.warn(f"gce.zones names {elsewhere}, but the subnetworks are in {there}: no node can be made there")
    return SetupResult(project=project, outputs=outputs, file=file, keys=keys)


def destroy(config: Config, *, project: str | None, yes: bool, plan_only: bool, console: Console) -> DestroyResult:
    """Delete what `setup` made from this machine, but for the bucket and the APIs; with `plan_only`, only show it.

    What stays remains in Terraform's state, so that a later `setup` finds it.

    Raises:
        UsageError: there are clusters, which need it.
        HvdcloudError: as for `setup`.
    """
    project = find_project(config, project)
    terraform = Terraform(project, user_variables=user_variables(config.project_dir), for_script=console.as_json)
    with terraform.lock("setup --destroy"):
        there = terraform.addresses() if terraform.state() else ()
        bucket = terraform.outputs().get("bucket", "") if there else ""
        gone = [address for address in there if address.partition(".")[0] not in _STAYS]
        if gone:
            _refuse_while_clusters_exist(config, project, console)
            targets = ["-destroy", *(f"-target={address}" for address in gone)]
            with terraform.using({**terraform.variables(), "project": project}, keep=not plan_only):
                if plan_only:
                    terraform.plan(*targets)
                else:
                    terraform.apply(*targets, yes=yes)
    return DestroyResult(project=project, deleted=gone, bucket=bucket, planned=plan_only)


def _apply(terraform: Terraform, *, yes: bool, console: Console) -> None:
    """Apply; again with pauses while Terraform fails because an API that was enabled a moment ago is not on yet."""
    from tenacity import RetryCallState, retry, retry_if_exception, stop_after_delay, wait_exponential

    def say(state: RetryCallState) -> None:
        console.warn(f"an API that was just enabled does not answer yet; again in {state.upcoming_sleep:.0f} s")

    retry(
        retry=retry_if_exception(lambda error: isinstance(error, UsageError) and terraform.meets_disabled_api()),
        wait=wait_exponential(min=API_PAUSE_SECONDS, max=60.0),
        stop=stop_after_delay(ENABLING_SECONDS),
        before_sleep=say,
        reraise=True,
    )(terraform.apply)(yes=yes)


def yaml_values(outputs: Mapping[str, Any], name: str) -> dict[str, str]:
    """hvdcloud.yaml's keys for the module's outputs."""
    below = ("image.repository", "checkpoints.bucket")  # Each cluster has a folder of its own there.
    found = {key: str(outputs[output]) for output, key in _KEYS.items()}
    return {"provider": "gce", **{key: f"{value}/{name}" if key in below else value for key, value in found.items()}}


def _refuse_while_clusters_exist(config: Config, project: str, console: Console) -> None:
    from hvdcloud import providers

    gce = config.gce.model_copy(update={"project": project})
    there = config.model_copy(update={"provider": "gce", "gce": gce})
    listing = providers.platform(there).connect(on_retry=console.say).list()
    if listing.clusters:
        names = ", ".join(cluster.name for cluster in listing.clusters)
        raise UsageError(
            f"project {project} still has {counted(len(listing.clusters), 'cluster')}: {names}",
            hint=f"hvdcloud down --name {listing.clusters[0].name} first; hvdcloud list shows them all",
        )
    if listing.unseen:
        raise listing.unseen_error()
