"""The SBOM of an image that was built: listed, written to a file, put beside the image at the registry, and scanned."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hvdcloud.errors import CredentialsError, ImageError, UsageError

if TYPE_CHECKING:
    from hvdcloud.image.publish.sbom import Contents
    from hvdcloud.image.publish.scan import Vulnerabilities
    from hvdcloud.image.publish.scanned import Scanned
    from hvdcloud.lifecycle.context import Context

_TITLE = "sbom.cdx.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SbomOutcome:
    """The SBOM of an image."""

    path: Path | None
    """The file; None if none was asked for."""
    digest: str | None
    """The digest of the artifact beside the image at the registry; None if there is none."""
    packages: int
    scanner: str | None = None
    """What listed them; None: no scanner did, and they are the Python packages."""

    @property
    def kind(self) -> str:
        """What is listed, for people."""
        return "packages" if self.scanner else "Python packages"


def check_writable(path: Path) -> None:
    """Before a build that may take long. Raises UsageError: no SBOM can be written to this file."""
    folder = path.parent
    if path.is_dir():
        why = "that is a folder"
    elif not folder.is_dir():
        why = f"there is no folder {folder}"
    elif not os.access(path if path.exists() else folder, os.W_OK):
        why = "permission denied"
    else:
        return
    hint = f"--sbom {_TITLE} writes it into the current folder"
    raise UsageError(f"the SBOM can't be written to {path}: {why}", hint=hint)


def contents_of(context: Context, reference: str, *, wanted: bool) -> Contents | Scanned | None:
    """What is in the image: all of it where a scanner is on this machine, else its Python packages; None if that cannot
    be found out and was not asked for."""
    from hvdcloud.image.publish import sbom, scan, scanned

    unseen = "sshd, libc, Open MPI and what else is in its system are not looked at"
    if (scanner := scan.available()) is None:
        context.console.say(f"{unseen}: there is no scanner here; {scan.HOW_TO_GET_ONE}")
    else:
        try:
            with context.console.steps() as steps:
                steps.update("sbom", f"{scanner} looks at the image")
                found = scanned.contents(reference)
                steps.finish("sbom", "ready")
            return found
        except ImageError as error:
            context.console.warn(f"{unseen}: {error.message}; {error.hint} shows why")
    try:
        return sbom.contents(reference)
    except ImageError as error:
        if wanted:
            raise
        context.console.warn(f"there will be no SBOM: {error.message}")
        return None


def keep_sbom(
    context: Context,
    found: Contents | Scanned,
    *,
    reference: str,
    tag: str | None,
    digest: str | None,
    path: Path | None,
) -> SbomOutcome:
    """Write the SBOM to a file if one is wanted, and to the registry if the image was pushed.

    Args:
        reference: the image in the engine.
        tag: where it was pushed to; `digest`: which it has there. None: it was not pushed.
        path: the file; None: none is wanted.

    Raises ImageError: the file could not be written.
    """
    from docker.utils import parse_repository_tag

    from hvdcloud.image.publish import sbom, scanned

    name = parse_repository_tag(tag or reference)[0]
    if isinstance(found, scanned.Scanned):
        scanner, content = found.inventory.scanner, scanned.document(found, name=name, digest=digest)
    else:
        scanner, content = None, sbom.document(found, name=name, digest=digest)
    if path is not None:
        try:
            path.write_bytes(content)
        except OSError as error:
            message = f"the SBOM was not written to {path}: {error.strerror}"
            raise ImageError(message, hint="free space there, then build again") from error
    attached = None if tag is None or digest is None else _attach(context, content, tag=tag, digest=digest)
    return SbomOutcome(path=path, digest=attached, packages=len(found.packages), scanner=scanner)


def _attach(context: Context, content: bytes, *, tag: str, digest: str) -> str | None:
    """Puts the SBOM beside the image; a registry that takes none does not undo the push."""
    from hvdcloud.image.publish import referrers, sbom

    try:
        return referrers.attach(tag, digest, content, media_type=sbom.MEDIA_TYPE, title=_TITLE)
    except (ImageError, CredentialsError) as error:
        context.console.warn(f"the image is pushed, but its SBOM is not beside it: {error.message}; {error.hint}")
        return None


def scan_sbom(context: Context, sbom: SbomOutcome) -> Vulnerabilities | None:
    """What a scanner on this machine knows of the packages in the SBOM's file. It says; it fails nothing."""
    if sbom.path is None:
        return None
    from hvdcloud.image.publish import scan

    try:
        found = scan.scan(sbom.path, report=sbom.path.with_suffix(".vulnerabilities.json"))
    except (ImageError, OSError) as error:
        said = f"{error.message}; {error.hint} shows why" if isinstance(error, ImageError) else str(error)
        context.console.warn(f"there is no report on vulnerabilities: {said}")
        return None
    if found is not None:
        known = f"known vulnerabilities of its {sbom.kind} ({found.scanner})"
        context.console.say(f"{known}: {found.summary}; {found.report}")
    return found
