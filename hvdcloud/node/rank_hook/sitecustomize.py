"""What a rank's Python does beside its program: it counts how long the rank waits in Horovod's collectives for PyTorch,
and looks for no garbage among what a framework has made. Python imports this at its start (module `site`).

A rank that the others wait for waits least itself, so the counts of all ranks name it. Every collective of
`horovod.torch` ends in one function of its library, `horovod_torch_wait_and_clear` (horovod/torch/mpi_ops.py, 0.28.1),
which blocks until all ranks have taken part; only that function is replaced, by one that also reads the clock.
Horovod's own timeline cannot tell: once a tensor's response is cached, its coordinator sees that some rank is missing,
not which (CoordinateCacheAndState in horovod/common/controller.cc), and it occupies a core (WriterLoop in timeline.cc).

TensorFlow's collectives do not come by here: our Horovod for it counts them itself, and writes the same record
(dockerfiles/patches/horovod-0.28.1-rank-waits.patch).

On GPUs the clock is the processor's: a rank's own kernels, which are still computing then, count as waiting.

PyTorch makes 250,000 objects while it loads, which stay to the end. Python would look through all of them for garbage
again and again: while they are made, as soon as a training has made a fourth as many that stay, whenever the program
asks for that, and four times at its end. So they are left out (gc.freeze) until the program has ended, and then looked
through once.

Runs under the user's Python, of any version from 3.8, alone in its folder. Nothing here may fail a rank.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import gc
import importlib.util
import json
import os
import stat
import sys
import time
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

FILE_VARIABLE = "HVDCLOUD_WAITS"
LIBRARY = "horovod.torch.mpi_lib_v2"
FUNCTION = "horovod_torch_wait_and_clear"
WRITE_SECONDS = 1.0
RECORD_BYTES = 256
STDERR = 2
FRAMEWORKS = ("torch", "tensorflow")


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
        """Write the file for the last time."""
        if self.rank >= 0:
            self.write()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


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


def load_and_count(load: Callable[[Any], object], library: Any, *, path: str) -> None:
    """Load Horovod's library, and count in it."""
    load(library)
    # One without the function has nothing to count.
    if hasattr(library, FUNCTION):
        count(library, Waits(path))


def load_and_freeze(load: Callable[[Any], object], framework: Any) -> None:
    """Load a framework, and leave what it makes out of every search for garbage until the program ends."""
    enabled = gc.isenabled()
    # A search also puts what refers to something before that, and so text before the file that it is written to: at its
    # end Python closes them in this order. What has never been looked through is in the order in which it was made.
    gc.collect()
    gc.disable()
    try:
        load(framework)
        gc.freeze()
    finally:
        if enabled:
            gc.enable()


def shorten_end() -> None:
    """Have Python look through everything once at its end, instead of four times: before it removes the modules, before
    and after it clears those that are left, and at last (finalize_modules and Py_FinalizeEx in CPython).

    The first time is without what the framework made, the second one is whole. The others could only find what the
    program has left in libraries, and look through all only where something of that may still have to be written.
    """
    if not gc.get_freeze_count():
        return
    unfreeze = gc.unfreeze

    def at(phase: str, info: object) -> None:
        # Modules may have been cleared, this one too.
        if phase == "stop":
            unfreeze()

    gc.callbacks.append(at)
    if not is_writing():
        vars(sys)["_hvdcloud_freezer"] = Freezer()


class Freezer:
    """Leaves everything out of further searches when it is deleted."""

    __slots__ = ()

    def __del__(self, freeze: Callable[[], None] = gc.freeze) -> None:
        freeze()


def is_writing() -> bool:
    """Whether the program has a file or a pipe open to write to, beside its standard streams."""
    for name in os.listdir("/proc/self/fd"):
        try:
            mode, flags = os.fstat(int(name)).st_mode, fcntl.fcntl(int(name), fcntl.F_GETFL)
        except OSError:
            # The one of the list itself.
            continue
        # Libraries wake their own threads by pipes that never block.
        written = stat.S_ISREG(mode) or (stat.S_ISFIFO(mode) and not flags & os.O_NONBLOCK)
        if written and flags & os.O_ACCMODE != os.O_RDONLY and int(name) > STDERR:
            return True
    return False


class Finder:
    """Finds modules like every other finder; some are loaded in another way.

    Args:
        loads: what loads each of these, once: it is called with what else would, and the module.
    """

    def __init__(self, loads: dict[str, Callable[..., None]]) -> None:
        self.loads = loads

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The module's own spec with another way to load it; None for any other module."""
        load = self.loads.pop(name, None)
        if load is None:
            return None
        try:
            spec = importlib.util.find_spec(name)
            if spec is None or spec.loader is None:
                return None
            usual = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                self.loads.pop(name, None)
                load(usual, module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        except Exception:  # noqa: BLE001 - the import works without us, or fails with the error that it has without us
            return None
        finally:
            # Programs also ask only whether there is such a module.
            self.loads[name] = load
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
        loads: dict[str, Callable[..., None]] = dict.fromkeys(FRAMEWORKS, load_and_freeze)
        loads[LIBRARY] = functools.partial(load_and_count, path=os.environ[FILE_VARIABLE])
        sys.meta_path.insert(0, Finder(loads))
        # What is registered first is called last.
        atexit.register(shorten_end)
    run_hidden()
