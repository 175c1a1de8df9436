"""Modules that take long to load: without what is not needed of them, or beside other work."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from types import ModuleType

_LEFT_OUT = {
    # Its SSH transport, which imports paramiko: more than a third of its time to load.
    "docker": "docker.transport.sshconn",
}
"""A part of a module that it can do without, where it cannot be imported."""
_LOADING = threading.Lock()


def load(module: str) -> ModuleType:
    """Import a module, without the part of it that is not needed.

    docker-py before threads begin that use it: if one of them imports `docker.errors` while another one imports
    `docker`, each waits for the other, and Python raises an error in one of them.
    """
    with _LOADING:
        part = _LEFT_OUT.get(module)
        if part is None or module in sys.modules or part in sys.modules:
            return importlib.import_module(module)
        sys.modules[part] = None  # type: ignore[assignment]
        try:
            return importlib.import_module(module)
        finally:
            del sys.modules[part]


def load_beside(*modules: str) -> None:
    """Import modules in a thread while this one waits for something else; returns at once. Until then they would only
    take time away from what has to come first."""

    def begin() -> None:
        for module in modules:
            # What is wrong with one is raised where it is used.
            with contextlib.suppress(Exception):
                load(module)

    threading.Thread(target=begin, name="load", daemon=True).start()
