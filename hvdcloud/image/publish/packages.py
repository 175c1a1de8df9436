"""Runs inside an image, by the image's own Python: prints which Python distributions are on its disk.

It is run as `python -I -S`: nothing of site-packages is imported, no `.pth` file executed. Standard library of
Python 3.7 and newer.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator

# What tools leave beside the code they install (https://packaging.python.org/en/latest/specifications/), and within it
# the file that says what it is. `.egg-info` may also be that file itself, as with distutils and Debian's packages.
METADATA = {"dist-info": "METADATA", "egg-info": "PKG-INFO"}
# No disk: the kernel's.
PASSED_OVER = ("dev", "proc", "sys")


def found(root: str) -> Iterator[str]:
    """The path of every metadata file below `root`: of all Pythons, and of what packages bring along."""
    # os.path and not pathlib: this is a million files in a CUDA image.
    for folder, folders, files in os.walk(root, onerror=_fail):
        if folder == root:
            folders[:] = [name for name in folders if name not in PASSED_OVER]
        for name in folders + files:
            inside = METADATA.get(name.rpartition(".")[2])
            if inside is None:
                continue
            place = f"{folder.rstrip('/')}/{name}"
            for path in (f"{place}/{inside}", place):
                if os.path.isfile(path):
                    yield path
                    break


def header(path: str) -> str:
    """The fields of a metadata file, without the description after them."""
    with open(path, "rb") as file:
        text = file.read().decode("utf-8", "replace").replace("\r\n", "\n")
    return text.partition("\n\n")[0]


def _fail(error: OSError) -> None:
    raise error


def main(root: str) -> None:
    """Prints {path: fields} as JSON, in an order that the file system has no part in."""
    paths = {os.fsencode(path).decode("utf-8", "replace"): path for path in found(root)}
    print(json.dumps({shown: header(paths[shown]) for shown in sorted(paths)}))


if __name__ == "__main__":
    main(sys.argv[1])
