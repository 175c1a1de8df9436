"""The commands about the image: build, push; and how their result looks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hvdcloud.cli.app import Invocation
from hvdcloud.errors import UsageError
from hvdcloud.units import seconds

if TYPE_CHECKING:
    from hvdcloud.console import Console
    from hvdcloud.lifecycle.build import BuildOutcome


def build(
    context: typer.Context,
    push: Annotated[bool, typer.Option("--push", help="Push the image as well.")] = False,
    cache_from: Annotated[
        str | None,
        typer.Option(help="Pull what this repository of a registry has, instead of building it.", metavar="HOST/PATH"),
    ] = None,
    cache_to: Annotated[
        str | None, typer.Option(help="Send what was built to this repository, for --cache-from.", metavar="HOST/PATH")
    ] = None,
    remote: Annotated[bool, typer.Option("--remote", help="Let Google Cloud Build build and push the image.")] = False,
) -> None:
    """Build the image that the nodes run, and print its digest.

    The same content is never built twice.

    \b
    Example:
      $ hvdcloud build
      $ hvdcloud build --push --cache-from us-central1-docker.pkg.dev/my-lab/cache
    """
    from hvdcloud.lifecycle.build import build as build_image
    from hvdcloud.lifecycle.build_remote import build_remote

    invocation: Invocation = context.obj
    if remote and (cache_from or cache_to):
        message = "--cache-from and --cache-to are for images that this machine builds; with --remote it builds none"
        raise UsageError(message, hint="leave them out (image.repository is the cache), or --remote")
    with invocation.context() as experiment:
        invocation.result = result = (
            build_remote(experiment)
            if remote
            else build_image(experiment, push=push, cache_from=cache_from, cache_to=cache_to)
        )
        _show_build(invocation.console, result)


def push(context: typer.Context) -> None:
    """Push the image to image.repository, and print its digest.

    Nodes run the image by this digest.

    \b
    Example:
      $ hvdcloud push
    """
    from hvdcloud.lifecycle.build import build as build_image

    invocation: Invocation = context.obj
    with invocation.context() as experiment:
        invocation.result = result = build_image(experiment, push=True)
        _show_build(invocation.console, result)


def _show_build(console: Console, result: BuildOutcome) -> None:
    """Whether it was built, and its digest."""
    how = "already exists" if result.cached else f"built in {seconds(result.seconds)}"
    console.answer(f"{result.reference} {how}")
    console.answer(result.digest or result.image_id)
