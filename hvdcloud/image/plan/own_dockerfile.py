"""`image.dockerfile`: the user's own Dockerfile, which the engine builds as `docker build` would.

Nothing here reads its instructions: what it makes is looked at, in the image. All that counts before is whether it
mentions our image, since that one has to be built first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from hvdcloud.errors import UsageError
from hvdcloud.image.plan import context
from hvdcloud.image.plan.context import Step
from hvdcloud.private_files import refuse_private
from hvdcloud.project_files import DOCKERIGNORE, build_files

REPOSITORY = "hvdcloud/user:"
BASE_ARGUMENT = "BASE"
_BASE = re.compile(rf"\b{BASE_ARGUMENT}\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnDockerfile:
    """The user's Dockerfile and what is sent with it.

    Attributes:
        path: of it, relative to the project's folder.
        on_ours: it takes our image as its argument BASE; else what it makes is an image of the user's own.
    """

    path: str
    on_ours: bool
    files: tuple[context.Entry, ...]


def read(project_dir: Path, path: str) -> OwnDockerfile:
    """Reads `image.dockerfile` and which files it may copy: those of the project that are not ignored.

    Raises:
        UsageError: it is missing or not below the project's folder, or a file can't be read.
    """
    file, root = project_dir / path, project_dir.resolve()
    if not file.is_file():
        hint = f"create it (ARG {BASE_ARGUMENT}, then FROM ${{{BASE_ARGUMENT}}}), or take image.dockerfile out"
        raise UsageError(f"{file} does not exist, but image.dockerfile names it", hint=f"{hint} of hvdcloud.yaml")
    if root not in file.resolve().parents:
        message = f"{file} is not below the project's folder {root}, which is all that can be sent"
        raise UsageError(message, hint="move it into the project and correct image.dockerfile")
    name = file.resolve().relative_to(root).as_posix()
    refuse_private(name, file, key="image.dockerfile")
    text = file.read_text(encoding="utf-8", errors="replace")
    found = root
    try:
        # The Dockerfile itself is sent, also if it is ignored.
        entries = {name: context.file_entry(root / name, name)}
        for found in build_files(root):
            relative = found.relative_to(root).as_posix()
            entries[relative] = context.file_entry(found, relative)
    except OSError as error:
        message = f"{error.filename or found} can't be read for image.dockerfile: {error.strerror}"
        raise UsageError(message, hint=f"correct its permissions, or add it to {DOCKERIGNORE}") from error
    sent = (entry for _, entry in sorted(entries.items()) if entry is not None)
    return OwnDockerfile(path=name, on_ours=_BASE.search(text) is not None, files=tuple(sent))


def user_step(own: OwnDockerfile, *, below: Step | None) -> Step:
    """What the user's Dockerfile makes, of our image below or of another one."""
    sent = context.Context(hashed=own.files, salt=(below.reference if below else "", own.path))
    return Step(
        reference=f"{REPOSITORY}{sent.digest()}",
        what=f"image.dockerfile {own.path}",
        context=sent,
        dockerfile=own.path,
        arguments={BASE_ARGUMENT: below.reference} if below else {},
        pip_hint=f"correct {own.path}, then `hvdcloud build` again",
        needs=(below.reference,) if below else (),
    )


def checked_step(user: Step, *, own_image: str, proof: str) -> Step:
    """The user's image once more, proven to be a node.

    Args:
        proof: what has to work, as dockerfiles/files/check_ranks.py takes it.
    """
    files = context.dockerfile_entries("checked.Dockerfile", "files/check_ranks.py", "own/check_node.py")
    sent = context.Context(hashed=files, salt=(own_image or user.reference, proof))
    return Step(
        reference=f"hvdcloud/project:{sent.digest()}",
        what=user.what,
        context=sent,
        dockerfile="dockerfiles/checked.Dockerfile",
        arguments={"IMAGE": user.reference, "PROOF": proof},
        needs=(user.reference,),
    )
