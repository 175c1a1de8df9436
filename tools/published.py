"""Builds and pushes what is the same for everybody: `make publish-images REGISTRY=HOST/PATH ROW=torch-2.13.0-cpu`.

    python -m tools.published rows           which rows dockerfiles/published.txt lacks, and where they are to be pushed
    python -m tools.published publish ROW    builds and pushes one of them; prints its lines of that file
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
from functools import cache
from pathlib import Path
from typing import Any

from hvdcloud import engine
from hvdcloud.config.model import ImageConfig
from hvdcloud.errors import HvdcloudError, UsageError
from hvdcloud.image.build.builder import Options, carry_out
from hvdcloud.image.build.published import FILE, RECIPE_LABEL, REPOSITORY, parse
from hvdcloud.image.build.registry_cache import refuse_passwords, tag_of
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


@cache
def plan_of(name: str) -> ImagePlan:
    """What has to be built for a row. Raises UsageError: there is none of that name."""
    row = rows().get(name)
    if row is None:
        hint = f"make publish-images ROW=… takes one of: {', '.join(rows())}"
        raise UsageError(f"there is no row {name or '(ROW is empty)'}", hint=hint)
    wanted = {"framework": row.framework, "device": row.device, "version": row.version, "requirements": None}
    needs = Needs(launcher="horovod" if row.horovod else "each")
    with tempfile.TemporaryDirectory() as project:
        config = ImageConfig.model_validate(wanted)
        return plan_image(config, project_dir=Path(project), machine=MACHINE, needs=needs)


def steps_of(name: str) -> tuple[Step, ...]:
    """Those steps of a row whose images are the same for everybody: the builder and the base image."""
    return plan_of(name).steps[:2]


def missing(known: Mapping[str, str]) -> list[str]:
    """The rows of which an image is not published; `known`: what dockerfiles/published.txt has."""
    return [name for name in rows() if any(step.reference not in known for step in steps_of(name))]


def publish(name: str, repository: str, *, known: Mapping[str, str], progress: Progress) -> dict[str, str]:
    """Builds and pushes the images of a row that are not published; returns their digests by reference.

    Raises ImageError, CredentialsError, NodeError: one could not be built or pushed.
    """
    registry.check_repository(repository, of="REGISTRY")
    plan, digests = plan_of(name), dict[str, str]()
    with contextlib.closing(engine.connect()) as client:
        api: Any = client.api
        for step in plan.steps[:2]:
            if step.reference in known:
                continue
            carry_out(api, plan.until(step), Options(progress=progress))
            refuse_passwords(api, step.reference)
            target = f"{repository}:{tag_of(step)}"
            # The step's image with one label more, which is no layer.
            dockerfile = Entry(path="Dockerfile", content=f"FROM {step.reference}\n".encode())
            labelled = Step(
                reference=target, what=step.what, context=Context(hashed=(dockerfile,)), dockerfile=dockerfile.path,
                labels={RECIPE_LABEL: step.reference},
            )  # fmt: skip
            carry_out(api, ImagePlan(reference=target, steps=(labelled,)), Options(progress=progress))
            try:
                digests[step.reference] = push(target, repository, progress=progress)
            finally:
                api.remove_image(target)
    return digests


def lines(digests: Mapping[str, str]) -> str:
    """As dockerfiles/published.txt has them."""
    return "".join(f"{reference} {digest}\n" for reference, digest in sorted(digests.items()))


def renewed(text: str, digests: Mapping[str, str]) -> str:
    """The file with these digests too, and without images of recipes that this version does not have."""
    made = {step.reference for name in rows() for step in steps_of(name)}
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
        return lines(publish(given.row, given.to, known=parse(text), progress=_show))
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
