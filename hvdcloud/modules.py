"""Modules that take long to load: without what is not needed of them, or beside other work."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from types import ModuleType

DOCKER_OVER_SSH = "docker.transport.sshconn"
"""What docker-py can do without, where it cannot be imported. It imports paramiko: more than a third of docker-py's
time to load."""
_LOADING = threading.Lock()


def load(module: str) -> ModuleType:
    """Import a module; `docker` without its SSH transport.

    docker-py before threads begin that use it: if one of them imports `docker.errors` while another one imports
    `docker`, each waits for the other, and Python raises an error in one of them.
    """
    with _LOADING:
        if module != "docker" or not sys.modules.keys().isdisjoint((module, DOCKER_OVER_SSH)):
            return importlib.import_module(module)
        sys.modules[DOCKER_OVER_SSH] = None  # type: ignore[assignment]
        try:
            return importlib.import_module(module)
        finally:
            del sys.modules[DOCKER_OVER_SSH]


def load_beside(*modules: str) -> None:
    """Import modules in a thread while this one waits for something else; returns at once. Until then they would only
    take time away from what has to come first."""

    def begin() -> None:
        for module in modules:
            # What is wrong with one is raised where it is used.
            with contextlib.suppress(Exception):
                load(module)

    threading.Thread(target=begin, name="load", daemon=True).start()
