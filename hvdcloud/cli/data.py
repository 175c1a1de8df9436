"""The commands about data sets: data push, data check; and how their results are shown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hvdcloud.cli.app import Invocation
from hvdcloud.errors import UsageError
from hvdcloud.units import counted, seconds, size

if TYPE_CHECKING:
    from hvdcloud.console import Console
    from hvdcloud.lifecycle.data_check import CheckedSet, ComparedResult, DataCheckResult
    from hvdcloud.lifecycle.data_push import DataPushResult

_SHOWN = 5

data_app = typer.Typer(help="Upload and check data sets.", no_args_is_help=True, rich_markup_mode=None)


@data_app.command()
def push(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder with the files.")],
    url: Annotated[str, typer.Argument(metavar="URL", help="Where it goes: gs://BUCKET[/PREFIX] or file:///DIR.")],
    private: Annotated[bool, typer.Option("--private", help="Send files that look like credentials, too.")] = False,
) -> None:
    """Upload a folder as a data set, and verify every file.

    A file that the bucket has with the same size and CRC32C is not sent. After Ctrl-C, or when the machine was switched
    off, the same command sends the rest. Files that differ are replaced, and nothing in the bucket is deleted. Links
    are not sent. The last lines are for hvdcloud.yaml.

    \b
    Example:
      $ hvdcloud data push ~/imagenet/train gs://my-bucket/imagenet/train
    """
    from hvdcloud.lifecycle.data_push import data_push

    invocation: Invocation = context.obj
    invocation.result = result = data_push(invocation.console, folder, url, private=private)
    show_push(invocation.console, result)


def show_push(console: Console, result: DataPushResult) -> None:
    """The lines for hvdcloud.yaml, then what was sent."""
    for line in result.yaml.splitlines():
        console.answer(line)
    held = f"{counted(result.files, 'file')}, {size(result.bytes)}, verified in {result.url}"
    if not result.files_sent:
        console.result([held, "all of it was there already", seconds(result.seconds)])
        return
    sent = f"{counted(result.files_sent, 'file')} sent in {seconds(result.seconds)}"
    console.result([held, f"{sent} ({size(int(result.bytes_sent / max(result.seconds, 1e-3)))}/s)"])


@data_app.command()
def check(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME | DIR]", help="A data set of hvdcloud.yaml, or a folder.")
    ] = None,
    url: Annotated[str | None, typer.Argument(metavar="[URL]", help="What the folder is compared with.")] = None,
) -> None:
    """Check data sets without nodes: size, names, whether they can be read.

    It looks at every set of hvdcloud.yaml, or at one. With a folder and a URL it compares the two, by size and CRC32C.
    Nothing is changed. It exits with 0 if all is well; else with 2 where names or the source are wrong, 3 where
    something may not be read, and 9 where folder and bucket differ.

    \b
    Example:
      $ hvdcloud data check
      $ hvdcloud data check ~/imagenet/train gs://my-bucket/imagenet/train
    """
    from hvdcloud.lifecycle import data_check as lifecycle

    invocation: Invocation = context.obj
    if url is not None:
        compared = lifecycle.compare_folder(invocation.console, Path(str(name)), url)
        invocation.result, invocation.exit_code = compared, compared.exit_code
        show_compared(invocation.console, compared)
        return
    if name is not None and ("/" in name or name == "."):
        raise UsageError(f"{name} is not the name of a data set", hint=f"hvdcloud data check {name} gs://BUCKET/PREFIX")
    config = invocation.load_config()
    result = lifecycle.data_check(config, invocation.console, name=name)
    invocation.result, invocation.exit_code = result, result.exit_code
    show_check(invocation.console, result)


def show_check(console: Console, result: DataCheckResult) -> None:
    """A table of the sets, and what is wrong below it."""
    headers = ["DATA SET", "SOURCE", "FILES", "SIZE", "EACH NODE", ""]
    console.table(headers, [_cells(each) for each in result.sets])
    for each in result.sets:
        if each.error:
            console.answer(f"{each.name}: {each.error}", style="red")
            console.answer(f"  next: {each.hint}", style="cyan")
        for lines, style in ((each.problems, "red"), (each.warnings, "yellow")):
            for text in lines[:_SHOWN]:
                console.answer(f"{each.name}: {text}", style=style)
            if len(lines) > _SHOWN:
                console.answer(f"{each.name}: and {len(lines) - _SHOWN:,} more; --json has them", style=style)
    if not result.exit_code:
        each_node = "mounted, nothing is copied"
        if any(not each.source.startswith("file:") for each in result.sets):
            each_node = f"each of {counted(result.nodes, 'node')} needs {size(result.node_bytes)} of its disk"
        console.result([f"{counted(len(result.sets), 'data set')}, all readable", each_node])


def _cells(each: CheckedSet) -> list[str]:
    if each.error:
        return [each.name, each.source, "-", "-", "-", "FAILED"]
    mounted = each.source.startswith("file:")
    needs = "mounted" if mounted else size(each.node_bytes) + (" (shard)" if each.per_node == "shard" else "")
    return [each.name, each.source, f"{each.files:,}", size(each.bytes), needs, "FAILED" if each.exit_code else "ok"]


def show_compared(console: Console, result: ComparedResult) -> None:
    """The names that differ, or one line that none does."""
    groups = (
        ("not in the bucket", result.missing),
        ("other bytes in the bucket", result.different),
        ("only in the bucket", result.extra),
        ("not sent without --private, since it looks like credentials", result.private),
    )
    for what, names in groups:
        for name in names[:_SHOWN]:
            console.answer(f"{what}: {name}")
        if len(names) > _SHOWN:
            console.answer(f"{what}: and {len(names) - _SHOWN:,} more; --json has them")
    if not result.exit_code:
        console.result(
            [f"{result.folder} and {result.url} hold the same", f"{result.same:,} files", size(result.bytes)]
        )
    elif result.missing or result.different:
        console.answer(f"next: hvdcloud data push {result.folder} {result.url}")
