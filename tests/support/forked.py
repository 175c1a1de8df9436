"""What a process does that was forked to be another program, in place of starting one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence


def become(folder: str, environment: Mapping[str, str], streams: Sequence[int]) -> None:
    """Take the folder, the environment, and the file descriptors of standard input, output and error."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
