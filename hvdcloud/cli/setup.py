"""`hvdcloud setup`: its arguments, one call, its rendering."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hvdcloud.cli.app import Invocation, Yes
from hvdcloud.errors import UsageError
from hvdcloud.units import counted


def setup(
    context: typer.Context,
    project: Annotated[
        str | None,
        typer.Option(
            metavar="PROJECT", help="The Google Cloud project; default: gce.project, else the credentials' own."
        ),
    ] = None,
    region: Annotated[
        list[str] | None,
        typer.Option(
            metavar="REGION",
            help="A region for nodes; repeat the option for each. The first is also that of the bucket and the images, "
            "which stay where they are. Default: as before; at first those of one continent that have the GPU.",
        ),
    ] = None,
    bucket: Annotated[
        str | None, typer.Option(help="The bucket's name; default: PROJECT-hvdcloud.", metavar="NAME")
    ] = None,
    plan_only: Annotated[
        bool, typer.Option("--plan-only", "--dry-run", help="Show what would be done; change nothing.")
    ] = False,
    yes: Yes = False,
    remove: Annotated[
        bool, typer.Option("--destroy", help="Delete what setup made; the bucket and what is in it stay.")
    ] = False,
) -> None:
    """Prepare a Google Cloud project with Terraform.

    It makes a network, a bucket, an image repository and a service account. Terraform shows what it will do and asks;
    then the names are written into hvdcloud.yaml. A second time it repairs what has changed. While no cluster runs,
    only what the bucket and the repository hold costs money. What else the Terraform module can do (a NAT, other users,
    data sets, a budget) is said in hvdcloud.tfvars beside hvdcloud.yaml.

    \b
    Example:
      $ hvdcloud setup --project my-lab
      $ hvdcloud setup --plan-only
      $ hvdcloud setup --destroy
    """
    from hvdcloud.config.file import CONFIG_FILE
    from hvdcloud.setup import setup as lifecycle

    invocation: Invocation = context.obj
    file = invocation.config or Path(CONFIG_FILE)
    config = invocation.load().config
    console = invocation.console
    if not (yes or plan_only or console.can_ask):
        raise UsageError(
            "nothing was changed: this has to be confirmed, and there is no terminal to ask on",
            hint="add --yes; --plan-only shows what would be done",
        )
    if remove:
        invocation.result = gone = lifecycle.destroy(
            config, project=project, yes=yes, plan_only=plan_only, console=console
        )
        what = "would be deleted; nothing was changed" if gone.planned else "deleted; hvdcloud setup makes them again"
        console.answer(f"{counted(len(gone.deleted), 'object')} of project {gone.project} {what}")
        if gone.bucket:
            left = "billed for what it holds, the project's APIs and a role, which cost nothing"
            console.answer(f"left: {gone.bucket}, {left}")
            console.answer(f"  deleted by hand with: gcloud storage rm --recursive {gone.bucket}")
        return
    invocation.result = result = lifecycle.setup(
        config,
        file,
        project=project,
        regions=region or (),
        bucket=bucket,
        yes=yes,
        plan_only=plan_only,
        console=console,
    )
    if result.planned:
        next_step = "next: hvdcloud setup" if result.changes else f"project {result.project} is set up"
        console.answer(f"nothing was changed; {next_step}")
        return
    console.answer(f"project {result.project} is set up")
    if result.keys:
        console.answer(f"{result.file}:")
        for change in result.keys:
            if change.old is not None:
                console.answer(f"  - {change.key}: {change.old}")
            console.answer(f"  + {change.key}: {change.new}")
    console.answer("next: hvdcloud doctor; hvdcloud launch")
