"""The contexts of several steps as one archive in the bucket, sent once for each content."""

from __future__ import annotations

import gzip
import hashlib
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hvdcloud.image.engine_stream import BuildEvent, Progress
from hvdcloud.image.plan.context import Context, Entry
from hvdcloud.storage.base import PreconditionError, disk_error

if TYPE_CHECKING:
    from hvdcloud.storage.base import Bucket, ObjectInfo

FOLDER = ".hvdcloud/builds"
"""Below the bucket's URL; what is in it may be deleted at any time that no build runs."""
_CA_BUNDLE = "ca-bundle.crt"
# Wheels are compressed already: more than the least costs minutes and saves next to nothing.
_LEVEL = 1


def merged(contexts: Mapping[str, Context], *, keep_ca_bundle: bool) -> Context:
    """One context with a folder for each.

    Args:
        contexts: what is in each folder, by its name.
        keep_ca_bundle: False: leave out certificates that only this machine's network needs.
    """
    entries = []
    for folder, context in contexts.items():
        for entry in (*context.hashed, *context.unhashed):
            sent = Entry(path="", content=b"") if entry.path == _CA_BUNDLE and not keep_ca_bundle else entry
            entries.append(replace(sent, path=f"{folder}/{entry.path}"))
    return Context(hashed=tuple(entries))


def send(bucket: Bucket, context: Context, *, progress: Progress) -> ObjectInfo:
    """Uploads a context to the bucket as `.tar.gz`, unless it has it.

    Raises:
        CredentialsError, BucketUnreachableError, UsageError: the bucket, see Bucket.
        CapacityError: there is no space left for the archive on this machine.
        UsageError: a file became shorter while it was read.
    """
    progress(BuildEvent(kind="image", text="packing the build's source"))
    total = hashlib.sha256()
    for chunk in context.stream():
        total.update(chunk)
    name = f"{FOLDER}/source-{total.hexdigest()[:32]}.tar.gz"
    found = bucket.stat(name)
    if found is not None:
        progress(BuildEvent(kind="image", text=f"{bucket.url}/{name} exists already"))
        return found
    with tempfile.NamedTemporaryFile(prefix="hvdcloud-build-", suffix=".tar.gz") as file:
        try:
            with gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=file, mtime=0) as archive:
                for chunk in context.stream():
                    archive.write(chunk)
            file.flush()
        except OSError as error:
            raise disk_error(error, path=Path(file.name), doing="packing the build's source into") from error
        size = Path(file.name).stat().st_size
        progress(BuildEvent(kind="image", text=f"sending {size / 1e6:.1f} MB to {bucket.url}/{name}"))
        try:
            return bucket.upload(Path(file.name), name, if_generation=0)
        except PreconditionError:
            # Another process was faster; the name stands for the content.
            sent = bucket.stat(name)
            if sent is None:
                raise
            return sent
