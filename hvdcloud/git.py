"""git, as it may run in a folder that somebody else has filled: nothing that a repository configures is started."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

_SECONDS = 60
_KEPT = ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM")
"""The user's own choice of configuration; other variables, such as GIT_DIR, may be about another repository."""
_SAFE = {
    "GIT_ALLOW_PROTOCOL": "none",  # No transport: an object that a partial clone lacks is not fetched.
    "GIT_DISCOVERY_ACROSS_FILESYSTEM": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
_OPTIONS = ("core.fsmonitor=false", f"core.hooksPath={os.devnull}", "safe.bareRepository=explicit")


def git(
    folder: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run git in a folder. It starts no hook, fsmonitor, pager or transport, and uses no bare repository.

    Raises:
        OSError: there is no git.
        subprocess.TimeoutExpired: it did not end.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name in _KEPT}
    options = [word for option in _OPTIONS for word in ("-c", option)]
    return subprocess.run(
        ["git", "--no-pager", *options, *arguments],
        cwd=folder,
        env={**inherited, **_SAFE, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_SECONDS,
        check=False,
    )
