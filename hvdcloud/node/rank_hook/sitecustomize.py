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
asks for that, and four times at its end. So they are left out (gc.freeze), with the few that the program had made
before, until it has ended, and then looked through once.

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
from types import FrameType
from typing import Any

FILE_VARIABLE = "HVDCLOUD_WAITS"
LIBRARY = "horovod.torch.mpi_lib_v2"
FUNCTION = "horovod_torch_wait_and_clear"
WRITE_SECONDS = 1.0
RECORD_BYTES = 256
STDERR = 2
FRAMEWORKS = ("torch", "tensorflow")
IMPORTING = (__name__, "importlib", "importlib._bootstrap", "importlib._bootstrap_external", "runpy")


class Waits:
    """Writes what was counted so far into a file that the node program reads: one block of JSON, replaced in place."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.process = os.getpid()
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
        # A child that the program has forked has counts of its own, which are not the rank's.
        if os.getpid() != self.process:
            return
        record = {
            "rank": self.rank,
            "waited": round(self.waited, 6),
            "seconds": round(self.ended - self.began, 6),
            "since": round(self.since, 3),
            "calls": self.calls,
        }
        try:
            # Each time: a program may close all that it has open, and get the number for a file of its own.
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.pwrite(descriptor, json.dumps(record).encode().ljust(RECORD_BYTES), 0)
            finally:
                os.close(descriptor)
        except Exception:  # noqa: BLE001 - a rank never fails over what is counted of it
            return

    def close(self) -> None:
        """Write the file for the last time."""
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


def load_and_count(load: Callable[[Any], object], library: Any, *, path: str) -> None:
    """Load Horovod's library, and count in it."""
    load(library)
    # One without the function has nothing to count.
    if hasattr(library, FUNCTION):
        count(library, Waits(path))


class Frozen:
    """What was made until a framework was loaded: left out of every search for garbage until the program ends."""

    def __init__(self) -> None:
        self.is_frozen = False

    def load(self, load: Callable[[Any], object], framework: Any) -> None:
        """Load a framework, and freeze what there is then, if it is the first one and the program has only begun: what
        it makes later may be large, and garbage soon."""
        enabled = gc.isenabled()
        # A search also puts what refers to something before that, and so text before the file that it is written to: at
        # its end Python closes them in this order. What has never been looked through is in the order in which it was
        # made.
        gc.collect()
        gc.disable()
        try:
            load(framework)
            if not gc.get_freeze_count() and is_at_module_level():
                gc.freeze()
                self.is_frozen = True
        finally:
            if enabled:
                gc.enable()

    def end(self) -> None:
        """Have Python look through everything once at its end, instead of four times: before it removes the modules,
        before and after it clears those that are left, and at last (finalize_modules and Py_FinalizeEx in CPython).

        The first time is without what is frozen, the second one is whole. The others could only find what the program
        has left in libraries. Where something may still have to be written, Python ends as ever: what it finds first
        decides what can be written.
        """
        if not self.is_frozen:
            return
        unfreeze = gc.unfreeze
        if is_writing() or not gc.isenabled():
            unfreeze()
            return

        def at(phase: str, info: object) -> None:
            # Modules may have been cleared, this one too.
            if phase == "stop":
                unfreeze()

        gc.callbacks.append(at)
        vars(sys)["_hvdcloud_freezer"] = Freezer()


class Freezer:
    """Leaves everything out of further searches when it is deleted."""

    __slots__ = ()

    def __del__(self, freeze: Callable[[], None] = gc.freeze) -> None:
        freeze()


def is_at_module_level() -> bool:
    """Whether modules are being imported, and no function of the program runs."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name != "<module>" and frame.f_globals.get("__name__") not in IMPORTING:
            return False
        frame = frame.f_back
    return True


def is_writing() -> bool:
    """Whether the program has a file, a pipe or a connection open to write to, beside its standard streams."""
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        return True
    for name in names:
        try:
            mode, flags = os.fstat(int(name)).st_mode, fcntl.fcntl(int(name), fcntl.F_GETFL)
        except OSError:
            # The one of the list itself.
            continue
        # Libraries have pipes and connections that never block.
        blocks = (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)) and not flags & os.O_NONBLOCK
        if (stat.S_ISREG(mode) or blocks) and flags & os.O_ACCMODE != os.O_RDONLY and int(name) > STDERR:
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
        frozen = Frozen()
        loads: dict[str, Callable[..., None]] = dict.fromkeys(FRAMEWORKS, frozen.load)
        loads[LIBRARY] = functools.partial(load_and_count, path=os.environ[FILE_VARIABLE])
        sys.meta_path.insert(0, Finder(loads))
        # What is registered first is called last.
        atexit.register(frozen.end)
    run_hidden()
