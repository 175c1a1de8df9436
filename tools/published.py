"""Builds and pushes what is the same for everybody: `make publish-images REGISTRY=HOST/PATH ROW=torch-2.13.0-cpu`.

    python -m tools.published rows           which rows dockerfiles/published.txt lacks, and where they are to be pushed
    python -m tools.published publish ROW    builds and pushes one of them; prints its line of that file
    python -m tools.published write FILE…    puts such lines into it

.github/workflows/base-images.yml calls each of them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hvdcloud import engine
from hvdcloud.config.model import ImageConfig
from hvdcloud.errors import HvdcloudError, UsageError
from hvdcloud.image.build.builder import Options, carry_out
from hvdcloud.image.build.published import FILE, RECIPE_LABEL, REPOSITORY, parse
from hvdcloud.image.build.registry_cache import tag_of
from hvdcloud.image.engine_reports import BuildEvent, Progress
from hvdcloud.image.plan.context import Context, Entry, Step, dockerfiles
from hvdcloud.image.plan.custom_base import Needs
from hvdcloud.image.plan.steps import ImagePlan, plan_image
from hvdcloud.image.plan.versions import ROWS, Row
from hvdcloud.image.publish import registry
from hvdcloud.image.publish.transfer import push

MACHINE = "x86_64"
_PLAIN = "-plain"


def rows() -> dict[str, Row]:
    """By name: the version matrix with Horovod, and without it, for the other launchers."""
    plain = {row.label + _PLAIN: row.without_horovod() for row in ROWS}
    return {**{row.label: row for row in ROWS if row.horovod}, **plain}


def plan_of(name: str) -> ImagePlan:
    """What is built for a row, up to the image that is the same for everybody.

    Raises UsageError: there is none of that name.
    """
    row = rows().get(name)
    if row is None:
        hint = f"make publish-images ROW=… takes one of: {', '.join(rows())}"
        raise UsageError(f"there is no row {name or '(ROW is empty)'}", hint=hint)
    wanted = {"framework": row.framework, "device": row.device, "version": row.version, "requirements": None}
    needs = Needs(launcher="horovod" if row.horovod else "each")
    with tempfile.TemporaryDirectory() as project:
        config = ImageConfig.model_validate(wanted)
        whole = plan_image(config, project_dir=Path(project), machine=MACHINE, needs=needs)
        return whole.until(next(step for step in whole.steps if step.reference.startswith("hvdcloud/base:")))


def missing(known: Mapping[str, str]) -> list[str]:
    """The rows whose image is not published; `known`: what dockerfiles/published.txt has."""
    return [name for name in rows() if plan_of(name).reference not in known]


def publish(plan: ImagePlan, repository: str, *, progress: Progress) -> dict[str, str]:
    """Builds and pushes a row's image; returns its digest, by its reference.

    Raises ImageError, CredentialsError, NodeError: it could not be built or pushed.
    """
    registry.check_repository(repository, of="REGISTRY")
    base = plan.last
    target = f"{repository}:{tag_of(base)}"
    # The image with one label more, which is no layer.
    dockerfile = Entry(path="Dockerfile", content=f"FROM {base.reference}\n".encode())
    labelled = Step(
        reference=target, what=base.what, context=Context(hashed=(dockerfile,)), dockerfile=dockerfile.path,
        labels={RECIPE_LABEL: base.reference}, needs=(base.reference,),
    )  # fmt: skip
    with contextlib.closing(engine.connect()) as client:
        api: Any = client.api
        carry_out(api, ImagePlan(reference=target, steps=(*plan.steps, labelled)), Options(progress=progress))
        try:
            return {base.reference: push(target, repository, progress=progress)}
        finally:
            api.remove_image(target)


def lines(digests: Mapping[str, str]) -> str:
    """As dockerfiles/published.txt has them."""
    return "".join(f"{reference} {digest}\n" for reference, digest in sorted(digests.items()))


def renewed(text: str, digests: Mapping[str, str]) -> str:
    """The file with these digests too, and without images of recipes that this version does not have."""
    made = {plan_of(name).reference for name in rows()}
    comments = [line for line in text.splitlines(keepends=True) if line.startswith("#")]
    kept = {reference: digest for reference, digest in {**parse(text), **digests}.items() if reference in made}
    return "".join(comments) + lines(kept)


def _show(event: BuildEvent) -> None:
    if event.kind in ("image", "step", "warning"):
        sys.stderr.write(f"{event.text}\n")


def _done(given: argparse.Namespace, file: Path) -> str:
    """What a command prints, after it has done its work."""
    text = file.read_text(encoding="utf-8")
    if given.command == "rows":
        return f"rows={json.dumps(missing(parse(text)))}\nrepository={REPOSITORY}\n"
    if given.command == "publish":
        return lines(publish(plan_of(given.row), given.to, progress=_show))
    found = parse("".join(each.read_text(encoding="utf-8") for each in given.lines))
    file.write_text(renewed(text, found), encoding="utf-8")
    return ""


def main() -> int:
    """Does what the command line says; 1: it could not be done."""
    parser = argparse.ArgumentParser(description="Publish the images that are the same for everybody.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("rows")
    publishing = commands.add_parser("publish")
    publishing.add_argument("row")
    publishing.add_argument("--to", required=True, metavar="HOST/PATH")
    commands.add_parser("write").add_argument("lines", type=Path, nargs="+")
    try:
        sys.stdout.write(_done(parser.parse_args(), dockerfiles() / FILE))
    except HvdcloudError as error:
        sys.stderr.write(f"published: {error.message}\n{error.details}\n→ {error.hint}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
