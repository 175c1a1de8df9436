"""`python -m hvdcloud`."""

from hvdcloud.cli.main import main

main()
