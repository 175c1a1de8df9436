"""Runs `terraform` (or OpenTofu's `tofu`) on the user's terminal, in a folder for each Google Cloud project."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hvdcloud.cluster.files import held, make_folder, open_private, state_root, write_private
from hvdcloud.console import is_dumb
from hvdcloud.errors import InterruptedByUserError, UsageError
from hvdcloud.interrupts import uninterrupted
from hvdcloud.json_values import parse_object

PACKAGE = Path(__file__).parent.parent
VARIABLES_FILE = "terraform.tfvars.json"
"""Terraform reads it by itself."""
LOCK_TIMEOUT = "-lock-timeout=15m"
"""How long to wait for another Terraform in the folder, such as that of a setup that was killed."""
NO_CHANGE, CHANGES = 0, 2
"""Exit codes of `plan -detailed-exitcode`."""
# The user's own settings for other Terraform projects would change what this one does.
_NOT_INHERITED = re.compile(r"TF_(?:CLI_ARGS.*|VAR_.*|WORKSPACE|DATA_DIR|INPUT)")


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


class Terraform:
    """Terraform's commands for one Google Cloud project, with the module's copy, the variables and the state.

    Args:
        user_variables: a file of the user's, whose values count more, but for the project.
        for_script: standard output is for JSON; what Terraform says goes to standard error.
    """

    def __init__(self, project: str, *, user_variables: Path | None = None, for_script: bool = False) -> None:
        self._program = find_terraform()
        # No cluster can have a name that begins with `_`.
        self.folder = state_root() / "_setup" / project
        self._more = [] if user_variables is None else [f"-var-file={user_variables}", f"-var=project={project}"]
        self._out = sys.stderr if for_script else sys.stdout

    @contextlib.contextmanager
    def lock(self, command: str) -> Iterator[None]:
        """Keep other setups of this project on this machine out. Raises UsageError: one holds the lock."""
        make_folder(self.folder.parent)
        make_folder(self.folder)
        file = open_private(self.folder / "lock", os.O_RDWR | os.O_CREAT)
        what = f"project {self.folder.name} is being set up"
        with held(file, command, what=what, hint="wait for it to end, then hvdcloud setup again"):
            yield

    def variables(self) -> dict[str, Any]:
        """What the module was applied with last; empty: it was not."""
        return parse_object(self._content(VARIABLES_FILE)) or {}

    def state(self) -> bytes:
        """Terraform's state; empty: there is none."""
        return self._content("terraform.tfstate")

    def _content(self, name: str) -> bytes:
        file = self.folder / name
        return file.read_bytes() if file.exists() else b""

    @contextlib.contextmanager
    def using(
        self, variables: Mapping[str, Any], *, keep: bool, imports: Mapping[str, str] | None = None
    ) -> Iterator[None]:
        """Copy the module here, write its variables, and install the providers.

        Args:
            keep: the variables; else, and if the block fails and nothing was made, those before come back.
            imports: address → Google's id of what Terraform takes into its state, unless that has it.

        Raises HvdcloudError: the providers could not be installed.
        """
        before, state = self.variables(), self.state()
        kept = False
        self._write_variables(variables)
        try:
            for old in self.folder.glob("*.tf"):
                old.unlink()
            for new in module_folder().glob("*.tf"):
                write_private(self.folder / new.name, new.read_text(encoding="utf-8"))
            blocks = (f'import {{\n  to = {to}\n  id = "{identity}"\n}}\n' for to, identity in (imports or {}).items())
            write_private(self.folder / "imports.tf", "".join(blocks))
            # The module may be of another version than last time, and its providers too old.
            self._run(["init", "-input=false", "-upgrade"])
            yield
            kept = keep
        finally:
            if not kept and self.state() == state:
                self._write_variables(before)

    def plan(self, *arguments: str) -> bool:
        """Show what would be done; returns whether anything. Raises HvdcloudError: something could not be read."""
        command = ["plan", "-input=false", "-detailed-exitcode", LOCK_TIMEOUT, *self._more, *arguments]
        return self._run(command, fine=(NO_CHANGE, CHANGES)) == CHANGES

    def apply(self, *arguments: str, yes: bool) -> None:
        """Show what will be done, ask (unless `yes`), and do it.

        Raises InterruptedByUserError: Ctrl-C; HvdcloudError: something was refused. What was made is in the state.
        """
        self._run(["apply", *(["-auto-approve", "-input=false"] if yes else []), LOCK_TIMEOUT, *self._more, *arguments])

    def meets_disabled_api(self) -> bool:
        """Whether a plan fails because an API is off, or is not on everywhere yet."""
        command = [str(self._program), "plan", "-no-color", "-input=false", LOCK_TIMEOUT, *self._more]
        done = subprocess.run(command, cwd=self.folder, env=_environment(), capture_output=True, text=True)
        return done.returncode != 0 and ("SERVICE_DISABLED" in done.stderr or "it is disabled" in done.stderr)

    def outputs(self) -> dict[str, Any]:
        """The module's outputs."""
        found = json.loads(self._read("output", "-json"))
        return {name: output["value"] for name, output in found.items()}

    def addresses(self) -> Sequence[str]:
        """Of all that is in the state."""
        return self._read("state", "list").splitlines()

    def _write_variables(self, variables: Mapping[str, Any]) -> None:
        write_private(self.folder / VARIABLES_FILE, json.dumps(variables, indent=2) + "\n")

    def _run(self, arguments: Sequence[str], *, fine: Sequence[int] = (0,)) -> int:
        """A command on the user's terminal. Ctrl-C reaches it there; it is waited for, and writes its state."""
        command, *options = arguments
        colour = self._out.isatty() and not is_dumb() and not os.environ.get("NO_COLOR")
        self._out.flush()
        interrupted = threading.Event()
        with uninterrupted(interrupted.set):
            # Terraform has it from here: a terminal that is closed does not end it half-way.
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            code = subprocess.run(
                [self._program, command, *([] if colour else ["-no-color"]), *options],
                cwd=self.folder,
                env=_environment(),
                stdout=self._out.fileno(),
                check=False,
            ).returncode
        if interrupted.is_set():
            said = "interrupted; what Terraform made until then is in its state"
            raise InterruptedByUserError(said, hint="hvdcloud setup continues from there")
        if code not in fine:
            message = f"{self._program.name} {command} ended with exit code {code}; what it says is above"
            raise UsageError(message, hint="fix what it names, then hvdcloud setup again: it continues from there")
        return code

    def _read(self, *arguments: str) -> str:
        """What a command that answers at once prints."""
        command = [str(self._program), *arguments]
        done = subprocess.run(command, cwd=self.folder, env=_environment(), stdout=subprocess.PIPE, text=True)
        if done.returncode:
            message = f"{self._program.name} {' '.join(arguments)} ended with exit code {done.returncode}"
            raise UsageError(message, hint=f"look at what it says above, and at {self.folder}")
        return str(done.stdout)


def _environment() -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not _NOT_INHERITED.fullmatch(name)}
    return {**inherited, "TF_IN_AUTOMATION": "1", "CHECKPOINT_DISABLE": "1"}
