"""One build at a time: a second `build` of the same image waits for the first, and then finds it done."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from hvdcloud.errors import ImageError
from hvdcloud.image.engine_stream import BuildEvent, Progress

DEADLINE_SECONDS = 3600.0
_POLL_SECONDS = 0.1


@contextlib.contextmanager
def alone(progress: Progress, *, engine: str, deadline_seconds: float = DEADLINE_SECONDS) -> Iterator[None]:
    """Keeps this user's other processes from building on the same engine. A killed process leaves no lock behind.

    Args:
        engine: its address, or whatever tells engines apart.

    Raises:
        ImageError: another build took longer than `deadline_seconds`.
    """
    key = hashlib.sha256(engine.encode()).hexdigest()[:8]
    path = Path(tempfile.gettempdir()) / f"hvdcloud-build-{os.getuid()}-{key}.lock"
    deadline = time.monotonic() + deadline_seconds
    # Nobody else's file is followed or truncated: the folder is everybody's.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "r+") as file:
        told = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ImageError(
                        f"another hvdcloud has been building an image for {deadline_seconds:.0f} s",
                        hint=f"`fuser {path}` shows its process",
                    ) from None
                if not told:
                    progress(BuildEvent(kind="image", text="waiting for another hvdcloud that is building an image"))
                    told = True
                time.sleep(_POLL_SECONDS)
        yield
