"""Runs the `terraform` binary (or OpenTofu's `tofu`) in a folder of its own, and keeps its state whole.

Terraform writes into a log file, not into a pipe, and is in a session of its own: whatever happens to this process or
to its terminal, Terraform finishes what it is doing and writes its state. The next command waits for that.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hvdcloud.cluster.files import check_folder, held, open_private, write_private
from hvdcloud.errors import InterruptedByUserError, NodeError, UsageError
from hvdcloud.json_values import parse_object
from hvdcloud.setup.terraform_errors import Diagnostic, begun_here, plain_diagnostics, terraform_error
from hvdcloud.setup.terraform_plan import SetupPlan, read_plan

PACKAGE = Path(__file__).parent.parent
PLAN_FILE = "plan.tfplan"
STATE_FILE = "terraform.tfstate"
VARIABLES_FILE = "terraform.tfvars.json"
NEXT_VARIABLES_FILE = "next.tfvars.json"
"""Terraform reads the first by itself; the second only becomes the first when its plan is carried out."""

COMMAND_SECONDS = 3600.0
"""The provider's own deadlines, 20 minutes for one object, end an apply long before."""
STOP_SECONDS = 900.0
_POLL_SECONDS = 0.05
# The user's own settings for other Terraform projects would change what this one does.
_NOT_INHERITED = re.compile(r"TF_(?:CLI_ARGS.*|VAR_.*|WORKSPACE|DATA_DIR|INPUT)")

OnEvent = Callable[[Mapping[str, Any]], None]


def find_terraform() -> Path:
    """`terraform` on PATH, else `tofu`. Raises UsageError: there is neither."""
    for name in ("terraform", "tofu"):
        if found := shutil.which(name):
            return Path(found).absolute()
    raise UsageError(
        "there is no terraform on PATH (nor OpenTofu's tofu)",
        hint="install it: https://developer.hashicorp.com/terraform/install or https://opentofu.org/docs/intro/install",
    )


def module_folder() -> Path:
    """The Terraform module: in an installed hvdcloud, or the repository it runs from. Raises UsageError: none."""
    for folder in (PACKAGE / "setup/module", PACKAGE.parent / "terraform"):
        if next(folder.glob("*.tf"), None) is not None:
            return folder
    message = f"this installation of hvdcloud has no terraform/ beside {PACKAGE}"
    raise UsageError(message, hint="in a clone of hvdcloud: pipx install --force .")


class WorkFolder:
    """The module's copy, the variables and Terraform's state, for one project: readable by its owner only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextlib.contextmanager
    def lock(self, command: str) -> Iterator[None]:
        """Keep other setups of this project on this machine out. The lock goes with the process.

        A Terraform whose hvdcloud was killed has a lock of its own, which the next plan waits for.

        Raises:
            UsageError: another hvdcloud holds it (the message names its `command`), or the folder cannot be made.
        """
        try:
            for folder in (self.folder.parent, self.folder):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            check_folder(self.folder)
            file = open_private(self.folder / "lock", os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise UsageError(
                f"{self.folder} cannot be made: {error.strerror or error}",
                hint="make it writable, or name another folder with HVDCLOUD_STATE_DIR",
            ) from error
        what = f"project {self.folder.name} is being set up"
        with held(file, command, what=what, hint="wait for it to end, then hvdcloud setup again"):
            self._restore_state()
            yield

    def _restore_state(self) -> None:
        """Put the state before the last apply back, if that apply's Terraform was killed as it wrote its state.

        Terraform truncates and rewrites the file, under a POSIX lock that goes with the process:
        https://github.com/hashicorp/terraform/blob/main/internal/states/statemgr/filesystem.go
        """
        try:
            file = (self.folder / STATE_FILE).open("r+b")
        except FileNotFoundError:
            return
        with file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # A Terraform whose hvdcloud was killed is still at work; the next plan waits for it.
                return
            if parse_object(file.read()) is not None:
                return
            backup = self.folder / f"{STATE_FILE}.backup"
            before = backup.read_bytes() if backup.exists() else b""
            file.seek(0)
            file.truncate()
            file.write(b"" if parse_object(before) is None else before)

    def prepare(self, module: Path) -> bool:
        """Copy the module here. Returns whether an older one was here before, whose provider may be too old."""
        new = {path.name: path.read_text(encoding="utf-8") for path in sorted(module.glob("*.tf"))}
        old = {path.name: path.read_text(encoding="utf-8") for path in self.folder.glob("*.tf")}
        for name in old.keys() - new.keys():
            (self.folder / name).unlink()
        for name, text in new.items():
            if old.get(name) != text:
                write_private(self.folder / name, text)
        return bool(old) and old != new

    def variables(self) -> dict[str, Any]:
        """What the last plan that was carried out was made with; empty before the first."""
        return _read_json(self.folder / VARIABLES_FILE)

    def propose(self, variables: Mapping[str, Any]) -> None:
        """Write the next plan's variables."""
        write_private(self.folder / NEXT_VARIABLES_FILE, json.dumps(variables, indent=2) + "\n")

    def accept(self) -> None:
        """The next plan is carried out: its variables stay."""
        (self.folder / NEXT_VARIABLES_FILE).replace(self.folder / VARIABLES_FILE)

    def remember(self, **facts: object) -> None:
        """Keep what belongs to this folder and is none of the module's variables."""
        write_private(self.folder / "choices.json", json.dumps({**self.choices(), **facts}, indent=2) + "\n")

    def choices(self) -> dict[str, Any]:
        """What `remember` was given."""
        return _read_json(self.folder / "choices.json")


class Terraform:
    """Terraform's commands in one folder, whose lock is held.

    KeyboardInterrupt is passed on to Terraform once; the caller sees to it that no second one arrives.

    Args:
        project: the Google Cloud project.
        say: called with a line of progress.
        user_variables: a file of the user's, whose values count more than those of the folder, but for the project.
    """

    def __init__(
        self,
        program: Path,
        work: WorkFolder,
        *,
        project: str,
        say: Callable[[str], None],
        user_variables: Path | None = None,
    ) -> None:
        self._program = program
        self._folder = work.folder
        self._project = project
        self._say = say
        self._more = [] if user_variables is None else [f"-var-file={user_variables}", f"-var=project={project}"]
        self._names: Mapping[str, str] = {}

    @property
    def has_state(self) -> bool:
        """Whether something was set up from here before."""
        return (self._folder / STATE_FILE).exists()

    def init(self, *, upgrade: bool) -> None:
        """Install the provider that the module asks for, unless it is. Raises HvdcloudError: it could not be."""
        self._run(["init", "-no-color", *(["-upgrade"] if upgrade else [])], doing="install Terraform's provider")

    def plan(
        self, *, destroy: bool = False, targets: Sequence[str] = (), variables_file: str = NEXT_VARIABLES_FILE
    ) -> SetupPlan:
        """What would change. Nothing is changed by this. Raises HvdcloudError: something could not be read."""
        arguments = ["plan", "-json", f"-out={PLAN_FILE}", f"-var-file={variables_file}", *self._more]
        arguments += [f"-lock-timeout={STOP_SECONDS:.0f}s", *(["-destroy"] if destroy else [])]
        arguments += [f"-target={target}" for target in targets]
        self._run(arguments, doing="look at what there is", on_event=self._on_plan_event)
        plan = read_plan(self._read(["show", "-json", PLAN_FILE]))
        self._names = plan.names
        return plan

    def plan_text(self) -> str:
        """The last plan in Terraform's own words."""
        return self._output(["show", "-no-color", PLAN_FILE])

    def apply(self, *, on_event: OnEvent) -> None:
        """Carry out the last plan.

        Args:
            on_event: called with each line of Terraform's machine-readable output:
                https://developer.hashicorp.com/terraform/internals/machine-readable-ui

        Raises:
            InterruptedByUserError: Ctrl-C; Terraform has written down what it made.
            HvdcloudError: something was refused. What was made before stays, also in the state.
        """
        self._run(["apply", "-json", PLAN_FILE], doing="set up the project", on_event=on_event)

    def take_up(self, address: str, identity: str) -> None:
        """Add an existing object to the state. Raises HvdcloudError: it does not exist, or may not be read."""
        arguments = ["import", "-no-color", f"-var-file={VARIABLES_FILE}", *self._more, address, identity]
        self._run(arguments, doing=f"adopt {identity}")

    def begun(self) -> list[str]:
        """Addresses whose creation began in the last apply, however it ended; not those that Google refused."""
        log = self._folder / "apply.log"
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
        return begun_here(filter(None, map(parse_object, lines)))

    def outputs(self) -> dict[str, Any]:
        """The module's outputs."""
        return {name: output["value"] for name, output in self._read(["output", "-json"]).items()}

    def _on_plan_event(self, event: Mapping[str, Any]) -> None:
        # Terraform says so only when it has to wait.
        if "Acquiring state lock" in str(event.get("@message", "")):
            self._say("the Terraform of a setup that was killed is still running; waiting for it to end")

    # --- running ----------------------------------------------------------------------------------------------------

    def _run(self, arguments: Sequence[str], *, doing: str, on_event: OnEvent = lambda event: None) -> None:
        """A command that may take minutes, its output in a log."""
        command = arguments[0]
        log = self._folder / f"{command}.log"
        diagnostics: list[Diagnostic] = []
        with log.open("wb") as out, log.open("rb") as reader:
            process = subprocess.Popen(
                [str(self._program), command, "-input=false", *arguments[1:]],
                cwd=self._folder,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                for event in _events(process, reader):
                    if event.get("type") == "diagnostic":
                        diagnostics.append(Diagnostic.from_json(event["diagnostic"]))
                    on_event(event)
            except KeyboardInterrupt:
                raise self._stopped(process, command) from None
        if process.returncode:
            failures = [diagnostic for diagnostic in diagnostics if diagnostic.severity == "error"]
            failures = failures or plain_diagnostics(log.read_text(encoding="utf-8", errors="replace"))
            ended = process.returncode
            raise terraform_error(failures, doing=doing, project=self._project, ended=ended, names=self._names)

    def _stopped(self, process: subprocess.Popen[bytes], command: str) -> InterruptedByUserError:
        """Ask Terraform once to stop, and wait till it has: a second time would make it leave its state unwritten."""
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            said = f"interrupted; Terraform (process {process.pid}) has not ended yet, with what it had begun"
            return InterruptedByUserError(said, hint="hvdcloud setup waits for it to end and continues from there")
        if command != "apply":
            return InterruptedByUserError("interrupted; nothing was changed", hint="hvdcloud setup starts again")
        said = "interrupted; what was made until then is kept and recorded"
        return InterruptedByUserError(said, hint="hvdcloud setup continues from there")

    def _output(self, arguments: Sequence[str]) -> str:
        """A command that answers at once."""
        done = subprocess.run(
            [str(self._program), *arguments],
            cwd=self._folder,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=STOP_SECONDS,
            check=False,
        )
        if done.returncode:
            failures = plain_diagnostics(done.stderr or done.stdout)
            raise terraform_error(failures, doing="read it", project=self._project, ended=done.returncode)
        return done.stdout

    def _read(self, arguments: Sequence[str]) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self._output(arguments))
        return value


def _environment() -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not _NOT_INHERITED.fullmatch(name)}
    return {**inherited, "TF_IN_AUTOMATION": "1", "CHECKPOINT_DISABLE": "1"}


def _events(process: subprocess.Popen[bytes], reader: Any) -> Iterator[dict[str, Any]]:
    """Each line of the log that is JSON, until the process has ended. Raises NodeError: it did not end in time."""
    deadline = time.monotonic() + COMMAND_SECONDS
    rest = b""
    while True:
        ended = process.poll() is not None
        *lines, rest = (rest + reader.read()).split(b"\n")
        yield from filter(None, map(parse_object, lines))
        if ended:
            return
        if time.monotonic() > deadline:
            process.send_signal(signal.SIGINT)
            message = f"Terraform did not end within {COMMAND_SECONDS / 60:.0f} minutes and was asked to stop"
            raise NodeError(message, hint="hvdcloud setup waits for it to end and continues from there")
        time.sleep(_POLL_SECONDS)


def _read_json(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError):
        return parse_object(path.read_bytes()) or {}
    return {}
