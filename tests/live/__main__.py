"""`python -m tests.live --project PROJECT`: README.md in this folder."""

from __future__ import annotations

import argparse
import getpass
import json
import platform
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from hvdcloud.errors import HvdcloudError
from hvdcloud.google.errors import ApiError
from hvdcloud.interrupts import uninterrupted
from hvdcloud.providers.gce.api.client import connect_client
from tests.live.anonymize import Anonymizer
from tests.live.hard_end import STOP_SECONDS, HardEnd
from tests.live.price import STEPS, Step, price, question
from tests.live.record import Follower, Recorder, newest
from tests.live.teardown import PROJECT, begin, environ_of, teardown
from tests.support.harness import HVDCLOUD

ROOT = Path(__file__).resolve().parents[2]
JOBS = ("tests/bench/job/allreduce.py", "tests/support/elastic_job.py", "tests/live/gpu_job.py")
REGION = "us-central1"
MINUTES = 60
WAIT_SECONDS = 900.0
"""For a VM that is taken away, and for a run that goes on."""
LOOK_SECONDS = 2.0
"""Between two looks at what is waited for."""


class StepError(Exception):
    """A step failed; the message says which, and how."""


class Live:
    """What the steps share: commands that are shown and kept, and the recorder."""

    def __init__(self, folder: Path, name: str, recorder: Recorder, end: HardEnd) -> None:
        self.folder = folder
        self.name = name
        self.recorder = recorder
        self._end = end
        self._count = 0
        self.step: Step | None = None

    def hvdcloud(self, command: str, *, expect: int | None = 0, show: bool = True) -> str:
        """Run a command to its end, show and keep what it prints; returns that.

        Raises StepError: it ended with another exit code than `expect`; None: any will do.
        """
        if show:
            self._count += 1
            sys.stdout.write(f"$ hvdcloud {command}\n")
        began = time.monotonic()
        with subprocess.Popen(
            [*HVDCLOUD, *shlex.split(command)],
            cwd=self.folder / PROJECT,
            env={**environ_of(self.folder), **(self.step.environ if self.step else {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if show else sys.stderr,
            text=True,
            errors="replace",
        ) as process:
            self._end.running(process.pid)
            assert process.stdout is not None
            lines = []
            try:
                for line in process.stdout:
                    lines.append(f"{time.monotonic() - began:7.1f} s  {line}" if show else line)
                    if show:
                        sys.stdout.write(line)
                        sys.stdout.flush()
                code = process.wait()
            except KeyboardInterrupt:
                # It rolls back what it was making.
                process.terminate()
                process.communicate(timeout=STOP_SECONDS)
                raise
        self._end.running(0)
        if show:
            words = f"$ hvdcloud {command}\n{''.join(lines)}exit code {code} after {time.monotonic() - began:.1f} s\n"
            verb = command.split()[0]
            self.recorder.text(f"{self._count:02}-{self.step.name if self.step else 'all'}-{verb}.txt", words)
        if expect not in (None, code):
            raise StepError(f"hvdcloud {command} ended with exit code {code}")
        return "".join(lines)

    def status(self) -> str:
        return self.hvdcloud("status --json", show=False)

    def node(self, index: int) -> tuple[str, str]:
        """Zone and name of a node's VM."""
        nodes = json.loads(self.status())["result"]["cluster"]["nodes"]
        zone, _, name = next(each["id"] for each in nodes if each["index"] == index).partition("/")
        self.recorder.zones.add(zone)
        return zone, name

    def until(self, probe: Callable[[], Any], what: str, *, seconds: float = WAIT_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        say(f"waiting for {what}")
        while not probe():
            if time.monotonic() > deadline:
                raise StepError(f"waited {seconds:.0f} s for {what}")
            time.sleep(LOOK_SECONDS)


def cpu(live: Live) -> None:
    """What README promises, at once after `setup`."""
    live.hvdcloud("up")
    live.recorder.lists("cpu")
    live.hvdcloud("run")
    live.hvdcloud("pull")


def spot(live: Live) -> None:
    """The second node is taken away; the run goes on with the head alone, until `resize` makes the node again."""
    live.hvdcloud("up")
    zone, name = live.node(1)
    live.hvdcloud("run --detach")
    live.until(lambda: newest(live.status()).get("world") == 2, "both nodes to train")
    live.recorder.document("spot-maintenance", live.recorder.maintenance(zone, name))

    live.until(lambda: "error" in live.recorder.vm(zone, name), f"the end of {name}")
    live.until(lambda: newest(live.status()).get("world") == 1, "the head to train alone")
    live.hvdcloud("resize 2")
    live.until(lambda: newest(live.status()).get("world") == 2, "both nodes to train again")
    live.recorder.lists("spot")
    live.hvdcloud("ssh 0 touch /tmp/enough")
    live.hvdcloud("logs -f")
    live.hvdcloud("pull")


def gpu(live: Live) -> None:
    """The driver, and what an image for GPUs does with it."""
    live.hvdcloud("up")
    live.recorder.lists("gpu")
    live.hvdcloud("ssh 0 nvidia-smi -q")
    live.hvdcloud("run")


LIFE: dict[str, Callable[[Live], None]] = {"cpu": cpu, "spot": spot, "gpu": gpu}


def run_steps(live: Live, steps: Sequence[Step], *, project: str, region: str) -> list[str]:
    """`setup`, then each step with a cluster of its own; what went wrong, in sentences."""
    begin(live.folder, "setup")
    live.hvdcloud(f"setup --yes --project {project} --region {region}")
    wrong = []
    for step in steps:
        live.step = step
        say(step.what)
        begin(live.folder, "up")
        with Follower(live.recorder, step.name):
            for part in (LIFE[step.name], _down):
                try:
                    part(live)
                except (StepError, HvdcloudError, ApiError) as error:
                    wrong.append(f"{step.name}: {error}")
                    say(wrong[-1])
        live.recorder.lists(f"{step.name}-after")
    live.step = None
    return wrong


def _down(live: Live) -> None:
    live.hvdcloud("down --force")


def keys(*, name: str, project: str, minutes: int) -> dict[str, Any]:
    """hvdcloud.yaml, but for what `setup` writes."""
    return {
        "name": name,
        "provider": "gce",
        "image.requirements": None,
        "checkpoints.keep_every": 5,
        "limits.max_run_duration": minutes * 60,
        "limits.ask_above": None,
        "gce.project": project,
        "gce.machine_type": "n1-standard-1",
        "gce.gpu": None,
        "gce.disk_gb": 50,
    }


def nested(dotted: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in dotted.items():
        section, _, rest = key.rpartition(".")
        (tree.setdefault(section, {}) if section else tree)[rest] = value
    return tree


def say(text: str) -> None:
    sys.stdout.write(f"\n# {text}\n")
    sys.stdout.flush()


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.live", description=__doc__)
    parser.add_argument("--project", required=True, help="one that hvdcloud was never set up in")
    parser.add_argument("--region", default=REGION, help=f"default {REGION}")
    parser.add_argument("--minutes", type=int, default=MINUTES, help=f"after which all is deleted (default {MINUTES})")
    parser.add_argument("--without", nargs="+", default=[], choices=list(LIFE), metavar="STEP", help="cpu, spot or gpu")
    parser.add_argument("--results", type=Path, default=ROOT / ".cache/live", help="a folder for the fixtures")
    options = parser.parse_args(argv)
    if options.minutes < 1:
        parser.error("--minutes is 1 or more")
    return options


def main() -> int:
    options = arguments()
    steps = [step for step in STEPS if step.name not in options.without]
    name = f"live-{secrets.token_hex(3)}"
    configuration = keys(name=name, project=options.project, minutes=options.minutes)
    cost = price(steps, configuration, region=options.region)
    sys.stderr.write(question(steps, cost, project=options.project, minutes=options.minutes))
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        sys.stderr.write("error: this costs money and has to be confirmed, and there is no terminal to ask at\n")
        return 2
    sys.stderr.write("Type the project's name to begin: ")
    sys.stderr.flush()
    if sys.stdin.readline().strip() != options.project:
        sys.stderr.write("not confirmed; nothing was made\n")
        return 130
    folder = options.results.absolute() / name
    (folder / PROJECT).mkdir(parents=True)
    (folder / PROJECT / "hvdcloud.yaml").write_text(yaml.safe_dump(nested(configuration)), encoding="utf-8")
    for job in JOBS:
        shutil.copy(ROOT / job, folder / PROJECT)
    # A closed terminal and `kill` are as Ctrl-C.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    delete = [sys.executable, "-m", "tests.live.teardown", str(folder)]
    wrong: list[str] = []
    with HardEnd(delete, seconds=options.minutes * 60, log=folder / "hard-end.log") as end:
        try:
            google = connect_client(project=options.project)
            recorder = Recorder(google, name, folder / "fixtures", words(options.project, name))
            wrong = run_steps(Live(folder, name, recorder, end), steps, project=options.project, region=options.region)
        except (StepError, HvdcloudError, ApiError) as error:
            wrong = [str(error)]
        except KeyboardInterrupt:
            wrong = ["interrupted"]
        finally:
            say("deleting everything")
            with uninterrupted():
                code = teardown(folder)
                if code == 0:
                    end.disarm()
    if code:
        wrong.append(
            f"not everything is deleted; {shlex.join(delete)} does it, and is being tried: {folder}/hard-end.log"
        )
    fixtures = folder / "fixtures"
    fixtures.mkdir(exist_ok=True)
    say(f"fixtures: {fixtures}; in one file: {shutil.make_archive(str(fixtures), 'gztar', fixtures)}")
    for each in wrong:
        sys.stderr.write(f"error: {each}\n")
    return 1 if wrong else 0


def words(project: str, name: str) -> Anonymizer:
    """What tells whose project it is."""
    return Anonymizer(
        {project: "my-project", name: "live"},
        {
            getpass.getuser(): "me",
            platform.node(): "my-laptop",
            str(Path.home()): "/home/me",
            str(ROOT): "/home/me/hvdcloud",
        },
    )


if __name__ == "__main__":
    sys.exit(main())
