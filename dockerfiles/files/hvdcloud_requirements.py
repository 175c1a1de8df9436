"""Puts what a project's requirements.txt installed before torch's own packages on sys.path.

Python imports this at start, through the .pth file of the same name; the path alone in a .pth file would be appended.
"""
# Every Python process runs this, and pathlib would be the slowest thing in it.
# ruff: noqa: PTH112, PTH120, PTH100

import os
import site
import sys

directory = f"/opt/requirements/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
if os.path.isdir(directory):
    before = list(sys.path)
    site.addsitedir(directory)
    own = os.path.dirname(os.path.abspath(__file__))
    position = before.index(own) if own in before else len(before)
    sys.path[:] = before[:position] + sys.path[len(before) :] + before[position:]
