"""`python -m hvdcloud`."""

import sys
from pathlib import Path

# Python has put the working folder there, and would import a project's yaml.py in place of the library.
if sys.path[0] == str(Path.cwd()):
    del sys.path[0]

from hvdcloud.cli.main import main

main()
