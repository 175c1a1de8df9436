"""The docker command that builds with the engine's BuildKit, and what it says. docker-py has no BuildKit."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import signal
import subprocess
import textwrap
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from hvdcloud import engine
from hvdcloud.errors import ImageError
from hvdcloud.image.engine_reports import BuildEvent, Progress
from hvdcloud.image.plan.context import Context, Step
from hvdcloud.image.plan.sources import download_arguments

KEPT_LINES = 20
LONGEST_TITLE = 100
"""Characters: an instruction may be a whole script."""
_PROBE_SECONDS = 10
_INSTALL = "install docker-buildx, the package of Debian 13 and Ubuntu (Docker's own: docker-buildx-plugin)"
# https://github.com/moby/buildkit/blob/v0.13.0/util/progress/progressui/printer.go, the same since Docker 20.10.
_WORK = re.compile(r"#(\d+) (.+)")
_INSTRUCTION = re.compile(r"\[(?!internal\])[^]]+\] .+")
_OUTPUT = re.compile(r"\d+\.\d+ (.*)")
_LAYER = re.compile(r"sha256:([0-9a-f]{12})[0-9a-f]{52} (.*\d.*)")
_MOUNTS = re.compile(r"--mount=\S+ +")
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_EXIT_CODE = re.compile(r".*(exit code: \d+)", re.DOTALL)
# What the scripts in dockerfiles/own/ end a build with: the cause and the next command.
_REFUSAL = re.compile(r".*hvdcloud: refused: (.+)\n.*hvdcloud: next: (.+)")
_PIP_ERROR = re.compile(r"^ERROR: (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class BuildKit:
    """The docker command that builds: buildx, or a client of Docker 20.10 to 22, which has BuildKit in itself."""

    command: tuple[str, ...]
    environment: dict[str, str]

    def build(self, step: Step, *, architecture: str = "", zstd: bool = False, progress: Progress) -> None:
        """Builds a step's image in the engine.

        Args:
            architecture: that the image is for: `amd64`; "": the engine's own.
            zstd: its layers are packed with zstd; only where `packs_zstd`.

        Raises:
            ImageError: an instruction failed; `details` has its last lines.
        """
        arguments = {**download_arguments(os.environ), **step.arguments}
        command = [*self.command, "--progress=plain", "--file", step.dockerfile, "--tag", step.reference]
        # Only OCI's media types have a name for layers packed with zstd.
        command += ["--output", "type=image,compression=zstd,oci-mediatypes=true"] if zstd else []
        command += ["--platform", f"linux/{architecture}"] if architecture else []
        command += ["--target", step.target] if step.target else []
        # By name, with the value in the environment: a package index may have its password in its URL.
        command += [word for name in arguments for word in ("--build-arg", name)]
        command += [word for name, value in step.labels.items() for word in ("--label", f"{name}={value}")]
        log = _Log(step, progress)
        if _run([*command, "-"], {**self.environment, **arguments}, step.context, log):
            raise log.error()

    def packs_zstd(self, api: Any) -> bool:
        """Whether layers are packed when they are built, as containerd's image store does."""
        return "buildx" in self.command and engine.keeps_files(api.info())


def find(api: Any) -> BuildKit:
    """The first docker command on PATH, for the engine of docker-py's client.

    Raises:
        ImageError: the engine or the command has no BuildKit.
    """
    parts = [str(part.get("Name")) for part in api.version().get("Components") or []]
    # Podman answers as an engine does.
    if "Engine" not in parts:
        what = parts[0] if parts else "the engine"
        raise ImageError(f"{what} has no BuildKit, which builds images", hint="install Docker 23 or newer")
    docker, environment = shutil.which("docker"), engine.command_environment()
    if docker is None:
        raise ImageError("no docker command on PATH, which builds images", hint=_INSTALL)
    if "buildx" in _says([docker, "buildx", "version"], environment):
        # The engine's own BuildKit, whichever builder `docker buildx use` chose: others don't see the engine's images.
        command = (docker, "buildx", "build", "--builder", environment.get("DOCKER_CONTEXT", "default"))
        # Without them there is one image, and not an index of an image and a document.
        environment["BUILDX_NO_DEFAULT_ATTESTATIONS"] = "1"
        environment.pop("SOURCE_DATE_EPOCH", None)
        return BuildKit(command, environment)
    environment["DOCKER_BUILDKIT"] = "1"
    if "--progress" in _says([docker, "build", "--help"], environment):
        return BuildKit((docker, "build"), environment)
    version = _says([docker, "--version"], environment).strip()
    raise ImageError(f"{docker} ({version}) has no buildx, which builds images", hint=_INSTALL)


def _says(command: list[str], environment: dict[str, str]) -> str:
    """What a command prints; empty if it fails."""
    # Not in the project's folder: docker and its plugins would read what they find there.
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(
            command, env=environment, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, errors="replace", timeout=_PROBE_SECONDS, check=True,
        ).stdout  # fmt: skip
    return ""


@dataclass(slots=True)
class _Log:
    """What a build prints (`--progress=plain`), of which several instructions may run at the same time:

    #5 [tools 2/3] RUN apt-get update
    #5 0.345 Get:1 http://deb.debian.org/debian bookworm InRelease
    #5 ERROR: process "/bin/sh -c apt-get update" did not complete successfully: exit code: 100
    """

    step: Step
    progress: Progress
    _: KW_ONLY
    _titles: dict[str, str] = field(default_factory=dict)
    _tails: dict[str, deque[str]] = field(default_factory=dict)
    _failed: tuple[str, str] = ("", "")
    """The number of the work that failed first, and what was said of that."""
    _closing: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))

    def read(self, line: str) -> None:
        work = _WORK.fullmatch(line)
        if work is None:
            self._closing.append(line)
            return
        number, text = work.groups()
        if number not in self._titles:
            self._titles[number] = textwrap.shorten(_MOUNTS.sub("", text), LONGEST_TITLE, placeholder=" …")
            self._tails[number] = deque(maxlen=KEPT_LINES)
            if _INSTRUCTION.fullmatch(text):
                self.progress(BuildEvent(kind="step", text=self._titles[number]))
        elif output := _OUTPUT.fullmatch(text):
            if printed := output[1].strip():
                self._tails[number].append(output[1])
                self.progress(BuildEvent(kind="output", text=printed))
        elif layer := _LAYER.fullmatch(text):
            self.progress(BuildEvent(kind="layer", text=f"{layer[1]}: {layer[2]}"))
        elif text.startswith("ERROR: ") and not self._failed[0] and "context canceled" not in text:
            self._failed = number, text.removeprefix("ERROR: ")

    def error(self) -> ImageError:
        """Why the command failed, in BuildKit's own words, and what to do about it."""
        number, text = self._failed
        title, what = self._titles.get(number, ""), self.step.what
        printed = "\n".join(self._tails.get(number, ()))
        details = printed or "\n".join(self._closing)
        text = _EXIT_CODE.sub(r"\1", text) or next((line for line in reversed(self._closing) if "ERROR" in line), "")
        text = text or (self._closing[-1] if self._closing else "docker does not say why")
        everything = f"{details}\n{text}"
        if engine.says_disk_full(everything):
            hint = "`docker system df` shows what uses it, `docker image prune` and `docker builder prune` free some"
            message = f"{what} can't be built: the disk of the Docker engine is full"
            return ImageError(message, hint=hint, details=everything)
        if refusal := _REFUSAL.search(everything):
            details = _REFUSAL.sub("", details).strip()
            return ImageError(f"{what} can't be a node: {refusal[1]}", hint=refusal[2], details=details)
        if pip := _PIP_ERROR.search(printed):
            return ImageError(f"{what} was not built: pip: {pip[1]}", hint=self.step.pip_hint, details=details)
        hint = "the failing step's last lines are above; `hvdcloud build` again continues from the step before"
        if title.startswith("[internal] load metadata"):
            hint = "check the engine's network; `make base-image` in hvdcloud's repository makes Debian's image"
        return ImageError(f"{what} was not built: {f'{title}: ' if title else ''}{text}", hint=hint, details=details)


def _run(command: list[str], environment: dict[str, str], context: Context, log: _Log) -> int:
    """Sends the context to a docker command and reads what it prints; returns its exit code.

    Anything that ends this early, such as Ctrl-C, ends the command, and with it the build.
    """
    # In a session of its own: the terminal's Ctrl-C is ours to pass on, once.
    process = subprocess.Popen(
        command, env=environment, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip
    with ThreadPoolExecutor(max_workers=1) as pool:
        try:
            sending = pool.submit(_send, process, context)
            assert process.stdout is not None
            for line in io.TextIOWrapper(process.stdout, errors="replace"):
                if text := _ANSI.sub("", line).rstrip():
                    log.read(text)
            exit_code = process.wait()
            sending.result()
            return exit_code
        finally:
            # The engine cancels a build whose command is gone, and one that has ended ends the thread as well.
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _send(process: subprocess.Popen[bytes], context: Context) -> None:
    assert process.stdin is not None
    # A command that reads no further has ended, and says why.
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
        context.write(pipe)
