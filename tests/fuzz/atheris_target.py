"""`TARGET CORPUS [-option=value …]`: one target under atheris, which sees where each input leads in hvdcloud's code."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["hvdcloud"], enable_loader_override=False):
    from tests.fuzz import targets


def main() -> None:
    """Fuzz until the time is over or something is found."""
    program, name, *arguments = sys.argv
    atheris.Setup([program, *arguments], targets.TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
