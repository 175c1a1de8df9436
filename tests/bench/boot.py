"""`python -m tests.bench.boot`: a VM's time to ready beside its longest part, the GPU's driver or the image.

Emulated VMs boot the startup script as it is shipped, with empty disks: the driver is a stand-in that sleeps, the image
is pulled from a registry on this machine. Both are measured in the same boot as the time to ready, by this process's
clock and what the VM says on its serial port. A run then says when its first step is done.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.bench.measure import Sample, output, run
from tests.bench.publish import JOB, ends_in_words, publish, say, table
from tests.standins.compute.state import Vm
from tests.support.cloud import Cloud, running_cloud
from tests.support.harness import HVDCLOUD, Project

DRIVER_SECONDS = 60.0
FEWEST_RUNS = 3
"""Fewer do not replace the results that are committed."""
LIMIT = 1.1
"""Of the longer part."""
UP_SECONDS = 600.0
NAME = "bench-boot"
JOB_FILE = "allreduce.py"

MARKS: Mapping[str, str] = {
    "on": "init: ",
    "both begin": "hvdcloud: step login",
    "image": "hvdcloud: Status: Downloaded newer image",
    "driver": "Finished installing GPU drivers",
    "start": "hvdcloud: step start",
}
"""What begins or has ended when this is on the serial port for the first time."""
_POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """One VM; seconds from power-on.

    Attributes:
        marks: the names of `MARKS`.
        ready: until it has reported that it is.
        before: from the start of `up` to power-on.
        up: what the whole command took.
        program, first_step: from the start of `run` to that of the job's program, and to the end of its first
            all-reduces.
    """

    marks: Mapping[str, float]
    ready: float
    before: float
    up: float
    program: float
    first_step: float

    @property
    def after(self) -> float:
        """From ready to the end of `up`."""
        return self.up - self.before - self.ready

    @property
    def driver(self) -> float:
        return self.marks["driver"] - self.marks["both begin"]

    @property
    def image(self) -> float:
        return self.marks["image"] - self.marks["both begin"]

    @property
    def longer(self) -> float:
        return max(self.driver, self.image)

    @property
    def ratio(self) -> float:
        """The whole boot to the longer part."""
        return self.ready / self.longer

    @property
    def in_turn(self) -> float:
        """The same with one part after the other."""
        return (self.ready + min(self.driver, self.image)) / self.longer


class Watch:
    """Takes the time of a VM's serial port and status, in a thread of its own."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._seen: dict[str, dict[str, float]] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def boots(self, *, began: float, up: Sample, job: Sample) -> list[Boot]:
        """Every VM that is ready, by name; `began`: when `up` did, by `time.monotonic()`."""
        found = []
        for _, marks in sorted(self._seen.items()):
            since = {name: at - marks["on"] for name, at in marks.items()}
            found.append(
                Boot(
                    marks=since,
                    ready=since.pop("ready"),
                    before=marks["on"] - began,
                    up=up.seconds,
                    program=job.marks["program"],
                    first_step=job.marks["reduced"],
                )
            )
        return found

    def _look(self) -> None:
        while not self._done.wait(_POLL_SECONDS):
            for vms in list(self._cloud.emulator.state.vms.values()):
                for name, vm in list(vms.items()):
                    self._mark(vm, self._seen.setdefault(name, {}))

    def _mark(self, vm: Vm, seen: dict[str, float]) -> None:
        now = time.monotonic()
        text = vm.serial.decode(errors="replace")
        for name, words in MARKS.items():
            if name not in seen and words in text:
                seen[name] = now
        status = vm.guest.get(("hvdcloud", "status"), "")
        if "ready" not in seen and '"status": "ready"' in status:
            seen["ready"] = now


def measure(cloud: Cloud, project: Project) -> tuple[list[Boot], Sample]:
    """The VMs of one `up` and `run`, which are undone, and what `up` printed."""
    assert cloud.machines is not None
    with cloud.machines.empty_disks(), Watch(cloud) as watch:
        began = time.monotonic()
        up = run([*HVDCLOUD, "up"], cwd=project.folder, env=project.environ, limit=UP_SECONDS)
        job = run([*HVDCLOUD, "run", "python", JOB_FILE], cwd=project.folder, env=project.environ)
    boots = watch.boots(began=began, up=up, job=job)
    run([*HVDCLOUD, "down", "--force"], cwd=project.folder, env=project.environ)
    return boots, up


def rows(rounds: Sequence[Sequence[Boot]]) -> str:
    """As Markdown: a row for each VM, then the medians."""
    everyone = [boot for boots in rounds for boot in boots]
    figures: Mapping[str, Callable[[Boot], str]] = {
        "driver": lambda boot: f"{boot.driver:.1f} s",
        "image": lambda boot: f"{boot.image:.1f} s",
        "power-on → both begin": lambda boot: f"{boot.marks['both begin']:.1f} s",
        "both are there → ready": lambda boot: f"{boot.ready - boot.marks['start']:.1f} s",
        "power-on → ready": lambda boot: f"{boot.ready:.1f} s",
        "of the longer one": lambda boot: f"{boot.ratio:.2f}",
        "one after the other": lambda boot: f"{boot.in_turn:.2f}",
        "`up` → power-on": lambda boot: f"{boot.before:.1f} s",
        "ready → end of `up`": lambda boot: f"{boot.after:.1f} s",
        "`up`": lambda boot: f"{boot.up:.1f} s",
        "`run` → program": lambda boot: f"{boot.program:.1f} s",
        "`run` → first step": lambda boot: f"{boot.first_step:.1f} s",
        "`up` → first step": lambda boot: f"{boot.up + boot.first_step:.1f} s",
    }
    lines = [
        [str(number), *(figure(boot) for figure in figures.values())]
        for number, boots in enumerate(rounds, start=1)
        for boot in boots
    ]
    median = statistics.median(boot.ratio for boot in everyone)
    worst = max(boot.ratio for boot in everyone)
    found = f"Time to ready is {median:.2f} of the longer part, {worst:.2f} where it is most; wanted: {LIMIT} or less."
    return f"{table(['round', *figures], lines)}\n\n{found}\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.boot", description=__doc__)
    parser.add_argument("--runs", type=int, default=FEWEST_RUNS, help="rounds (default 3)")
    parser.add_argument("--nodes", type=int, default=1, help="VMs of each (default 1)")
    parser.add_argument("--driver-seconds", type=float, default=DRIVER_SECONDS, help="default 60")
    parser.add_argument("--results", type=Path, help="folder for boot.json and boot.md")
    options = parser.parse_args()
    if options.runs < 1 or options.nodes < 1:
        parser.error("--runs and --nodes are 1 or more")
    if not output("docker", "version", "--format", "{{.Server.Version}}"):
        say("bench: no Docker engine answers; `make engine` starts one")
        return 1
    load = os.getloadavg()[0]
    rounds: list[list[Boot]] = []
    with ends_in_words(), tempfile.TemporaryDirectory(prefix="hvdcloud-bench-") as base:
        (Path(base) / "cloud").mkdir()
        with running_cloud(Path(base) / "cloud", driver_seconds=options.driver_seconds) as cloud:
            project = cloud.project(Path(base) / "work", NAME, nodes=options.nodes)
            project.environ["HVDCLOUD_STATE_DIR"] = str(project.state)
            shutil.copy(JOB / JOB_FILE, project.folder)
            say("building and pushing the image")
            run([*HVDCLOUD, "push"], cwd=project.folder, env=project.environ, limit=UP_SECONDS)
            for turn in range(options.runs):
                boots, up = measure(cloud, project)
                rounds.append(boots)
                for each in boots:
                    say(f"round {turn + 1}/{options.runs}: ready after {each.ready:.1f} s, {each.ratio:.2f}")
                for at, line in up.lines:
                    say(f"  {at:5.1f} s  {line}")
    complete = options.runs >= FEWEST_RUNS and options.driver_seconds == DRIVER_SECONDS and options.nodes == 1
    document = {
        "load": load,
        "cpus": os.cpu_count(),
        "driver_seconds": options.driver_seconds,
        "rounds": [[asdict(boot) for boot in boots] for boots in rounds],
    }
    publish("boot", document, rows(rounds), folder=options.results, complete=complete)
    return 0


if __name__ == "__main__":
    sys.exit(main())
