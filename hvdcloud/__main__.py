"""`python -m hvdcloud`."""

import os
import sys

# Python has put the working folder there, and would import a project's yaml.py in place of the library. Only modules
# that Python has loaded by now are safe to ask.
try:
    if sys.path[0] == os.getcwd():  # noqa: PTH109 - pathlib may be the project's
        del sys.path[0]
except FileNotFoundError:
    pass  # The working folder was deleted: nothing can be imported from there.

from hvdcloud.cli.main import main

main()
