"""`hvdcloud setup`: its arguments, one call, its rendering."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hvdcloud.cli.app import Invocation, Yes
from hvdcloud.errors import UsageError
from hvdcloud.units import counted, dollars, seconds
from hvdcloud.visible import visible

if TYPE_CHECKING:
    from hvdcloud.console import Console
    from hvdcloud.setup.destroy import DestroyResult
    from hvdcloud.setup.setup import Confirm, SetupResult


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
            "which stay where they are. Default: those of one continent that have the GPU.",
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
        bool, typer.Option("--destroy", help="Delete what setup made; a bucket that is not empty stays.")
    ] = False,
) -> None:
    """Prepare a Google Cloud project with Terraform.

    It makes a network, a bucket, an image repository and a service account. It shows what it will do, asks, and writes
    the names into hvdcloud.yaml. A second time it repairs what has changed. While no cluster runs, only what the bucket
    and the repository hold costs money. What else the Terraform module can do (a NAT, other users, data sets, a budget)
    is said in hvdcloud.tfvars beside hvdcloud.yaml.

    \b
    Example:
      $ hvdcloud setup --project my-lab
      $ hvdcloud setup --plan-only
      $ hvdcloud setup --destroy
    """
    from hvdcloud.config.file import CONFIG_FILE
    from hvdcloud.setup import setup as lifecycle
    from hvdcloud.setup.choices import SetupOptions

    invocation: Invocation = context.obj
    file = invocation.config or Path(CONFIG_FILE)
    config = invocation.load_config()
    confirm = _confirm(yes=yes)
    if remove:
        from hvdcloud.setup.destroy import destroy

        invocation.result = gone = destroy(
            config, file, project=project, console=invocation.console, confirm=confirm, plan_only=plan_only
        )
        _show_destroy(invocation.console, gone)
        return
    options = SetupOptions(project=project, regions=region, bucket=bucket)
    invocation.result = result = lifecycle.setup(
        config, file, options, console=invocation.console, confirm=confirm, plan_only=plan_only
    )
    _show_setup(invocation.console, result)


def _confirm(*, yes: bool) -> Confirm:
    """Asks on the terminal; without one, `--yes` is required."""

    def ask(question: str) -> bool:
        if yes:
            return True
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise UsageError(
                "nothing was changed: this has to be confirmed, and there is no terminal to ask on",
                hint="add --yes; --plan-only shows what would be done",
            )
        return typer.confirm(visible(question), err=True)

    return ask


def _show_setup(console: Console, result: SetupResult) -> None:
    """What was done, and which keys changed."""
    if result.nothing_to_do:
        console.answer(f"project {result.project} is set up, and {result.file} says so: nothing to do")
        return
    if result.planned:
        done = (
            f"{counted(len(result.done), 'change')} above in project {result.project}"
            if result.done
            else "no change there"
        )
        console.answer(f"{done}; nothing was changed")
    elif result.done:
        console.answer(f"project {result.project} is set up, in {seconds(result.seconds)}")
    if result.keys:
        console.answer(f"{result.file}{' would get' if result.planned else ''}:")
        for change in result.keys:
            if change.old is not None:
                console.answer(f"  - {change.key}: {change.old}")
            console.answer(f"  + {change.key}: {change.new}")
    console.answer("next: hvdcloud setup" if result.planned else "next: hvdcloud doctor; hvdcloud launch")


def _show_destroy(console: Console, result: DestroyResult) -> None:
    """What was deleted, what is left, and what that costs."""
    if result.planned and result.done:
        console.answer(
            f"{counted(len(result.done), 'object')} above would be deleted from {result.project}; nothing was changed"
        )
    elif result.nothing_to_do:
        console.answer(f"nothing in project {result.project} was set up from this machine; nothing to delete")
    else:
        took = seconds(result.seconds)
        console.answer(f"{counted(len(result.done), 'object')} deleted from project {result.project}, in {took}")
    for kept in result.kept:
        cost = f", {dollars(kept.dollars_per_month)} a month" if kept.dollars_per_month else ""
        console.answer(f"left: {kept.name}: {kept.reason}{cost}")
        if kept.delete_with:
            console.answer(f"  deleted by hand with: {kept.delete_with}")
    if result.dead_keys and not result.planned:
        console.answer(f"{result.file} still names what is gone: {', '.join(result.dead_keys)}")
        console.answer("  hvdcloud setup makes it again")
