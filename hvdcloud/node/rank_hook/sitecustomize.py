"""Counts how long a rank waits in Horovod's collectives for PyTorch; Python imports it at its start (module `site`).

A rank that the others wait for waits least itself, so the counts of all ranks name it. Every collective of
`horovod.torch` ends in one function of its library, `horovod_torch_wait_and_clear` (horovod/torch/mpi_ops.py, 0.28.1),
which blocks until all ranks have taken part; only that function is replaced, by one that also reads the clock.
Horovod's own timeline cannot tell: once a tensor's response is cached, its coordinator sees that some rank is missing,
not which (CoordinateCacheAndState in horovod/common/controller.cc), and it occupies a core (WriterLoop in timeline.cc).

TensorFlow's collectives do not come by here: our Horovod for it counts them itself, and writes the same record
(dockerfiles/patches/horovod-0.28.1-rank-waits.patch).

On GPUs the clock is the processor's: a rank's own kernels, which are still computing then, count as waiting.

Runs under the user's Python, of any version from 3.8, alone in its folder. Nothing here may fail a rank.
"""

import atexit
import importlib.util
import json
import os
import sys
import time
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

FILE_VARIABLE = "HVDCLOUD_WAITS"
LIBRARY = "horovod.torch.mpi_lib_v2"
FUNCTION = "horovod_torch_wait_and_clear"
WRITE_SECONDS = 1.0
RECORD_BYTES = 256


class Waits:
    """Writes what was counted so far into a file that the node program reads: one block of JSON, replaced in place."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.descriptor = -1
        self.waited = 0.0
        self.calls = 0
        self.since = 0.0
        self.began = 0.0
        self.ended = 0.0
        self.written = 0.0
        self.rank = -1

    def add(self, began: float, ended: float) -> None:
        """Count one wait, from and to `time.perf_counter()`."""
        if not self.calls:
            self.since, self.began = time.time(), began
        self.calls += 1
        self.waited += ended - began
        self.ended = ended
        if ended - self.written >= WRITE_SECONDS:
            self.written = ended
            try:
                # It changes in an elastic run.
                self.rank = sys.modules["horovod.torch"].rank()
            except Exception:  # noqa: BLE001 - Horovod is being shut down: the rank is the one that it was
                return
            self.write()

    def write(self) -> None:
        """Write the file; without room or rights the counts are missing, and training continues."""
        try:
            if self.descriptor < 0:
                self.descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
            record = {
                "rank": self.rank,
                "waited": round(self.waited, 6),
                "seconds": round(self.ended - self.began, 6),
                "since": round(self.since, 3),
                "calls": self.calls,
            }
            os.pwrite(self.descriptor, json.dumps(record).encode().ljust(RECORD_BYTES), 0)
        except Exception:  # noqa: BLE001 - a rank never fails over what is counted of it
            return

    def close(self) -> None:
        if self.rank >= 0:
            self.write()


def count(library: Any, waits: Waits) -> None:
    """Replace the function in which ranks wait."""
    wait = getattr(library, FUNCTION)
    clock = time.perf_counter

    def wait_and_count(handle: int) -> Any:
        began = clock()
        try:
            return wait(handle)
        finally:
            waits.add(began, clock())

    setattr(library, FUNCTION, wait_and_count)
    atexit.register(waits.close)


class Finder:
    """Finds Horovod's library like every other finder, and counts in it once it is loaded."""

    def __init__(self, path: str) -> None:
        self.path = path

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> "ModuleSpec | None":
        """The library's own spec, whose loader also replaces the function; None for any other module."""
        if name != LIBRARY:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
            if spec is None or spec.loader is None:
                return None
            load = spec.loader.exec_module

            def load_and_count(module: Any) -> None:
                load(module)
                # One without the function has nothing to count.
                if hasattr(module, FUNCTION):
                    count(module, Waits(self.path))

            spec.loader.exec_module = load_and_count  # type: ignore[method-assign]
        except Exception:  # noqa: BLE001 - the import works without us, or fails with the error that it has without us
            return None
        return spec


def run_hidden() -> None:
    """Run the sitecustomize that this one hides, as Python would have."""
    here = Path(__file__).resolve().parent
    others = [folder for folder in sys.path if Path(folder).resolve() != here]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    if os.environ.get(FILE_VARIABLE):
        sys.meta_path.insert(0, Finder(os.environ[FILE_VARIABLE]))
    run_hidden()
