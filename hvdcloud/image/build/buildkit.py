"""BuildKit, where engine and docker command have it: one step of a plan, with downloads that are cached.

docker-py has no BuildKit. The Dockerfiles know nothing of it either: the classic builder has to build the same images.
So what makes use of BuildKit, its cache mounts, is put into them here, on their way to the engine.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from hvdcloud import engine
from hvdcloud.errors import ImageError, UsageError
from hvdcloud.image.build.buildkit_output import PlainLog
from hvdcloud.image.build.classic import SILENCE_SECONDS
from hvdcloud.image.engine_stream import Progress, inspected
from hvdcloud.image.plan.context import Context, Entry, dockerfiles
from hvdcloud.image.plan.sources import download_arguments
from hvdcloud.image.plan.steps import Step

BUILDER_VARIABLE = "HVDCLOUD_BUILDER"
"""`classic` or `buildkit`: which of the engine's builders builds. Not set: BuildKit where it is available."""
# The first engine whose own BuildKit understands cache mounts: Docker 20.10.
_API_VERSION = "1.41"
# Later commands have BuildKit in a plugin, buildx, and without it none at all.
_COMMANDS_WITH_BUILDKIT = ((20, 10), (23, 0))
_DETECTION_SECONDS = 10
# Into the engine's image store. Only OCI's media types have a name for layers packed with zstd.
_LOADED = "type=docker"
_ZSTD = "type=image,compression=zstd,oci-mediatypes=true"
_CANCEL_SECONDS = 2.0
_RUN = re.compile(r"(?P<run>\s*RUN)(?P<flags>(?:\s+--\S+)*)\s+(?!\[)(?P<command>\S.*)", re.IGNORECASE)
_DOWNLOADS = re.compile(r"\bapt-get\b|\bpip\b|/opt/build/")
_CACHED = (
    "--mount=type=cache,target=/mnt,id=hvdcloud-downloads --mount=type=bind,source=buildkit,target=/media "
    'export PATH="/media:$PATH"; '
)


@dataclass(frozen=True, slots=True)
class BuildKitBuilder:
    """Builds images with stages side by side and downloads that survive a build.

    Attributes:
        api: docker-py's low-level client, of the engine that the command builds on.
        command: the docker command that builds.
        environment: its variables.
        architecture: that images are for: `amd64`; "": the engine's own.
        output: `docker buildx build --output`; "": the command has no such option.
    """

    api: Any
    _: KW_ONLY
    command: Sequence[str]
    environment: Mapping[str, str]
    architecture: str = ""
    output: str = ""

    def build(self, step: Step, *, progress: Progress) -> str:
        """Builds a step's image; returns its id.

        Raises:
            ImageError: an instruction failed; `details` has its last lines.
        """
        arguments = {**download_arguments(os.environ), **step.arguments}
        command = [*self.command, "--progress=plain", "--file", step.dockerfile, "--tag", step.reference]
        if self.output:
            command += ["--output", self.output]
        if self.architecture:
            command += ["--platform", f"linux/{self.architecture}"]
        if step.target:
            command += ["--target", step.target]
        # By name, with the value in the environment: a package index may have its password in its URL.
        for name in arguments:
            command += ["--build-arg", name]
        for name, value in step.labels.items():
            command += ["--label", f"{name}={value}"]
        log = PlainLog(image=step.what, pip_hint=step.pip_hint, progress=progress)
        environment = {**self.environment, **arguments}
        if _run([*command, "-"], environment=environment, context=with_cache(step), log=log, what=step.what):
            raise log.error()
        built = inspected(self.api, step.reference)
        if built is None:
            message = f"BuildKit built {step.what}, but the engine does not have it"
            raise ImageError(message, hint=f"{BUILDER_VARIABLE}=classic hvdcloud build")
        return str(built["Id"])


def find_builder(api: Any, *, architecture: str = "", zstd: bool = False) -> BuildKitBuilder | None:
    """BuildKit, if the engine and the first `docker` on PATH have it; None if not, or if the user wants none.

    Takes two starts of the docker command at most, less than 0.1 s.

    Args:
        zstd: new layers are packed with zstd where the engine packs them when it builds, and pushes them as they are.

    Raises:
        UsageError: HVDCLOUD_BUILDER is something else than a builder, or asks for BuildKit where there is none.
    """
    wanted = os.environ.get(BUILDER_VARIABLE, "")
    if wanted not in ("", "classic", "buildkit"):
        message = f"{BUILDER_VARIABLE}={wanted} is not a builder"
        raise UsageError(message, hint="set it to classic or buildkit, or unset it")
    if wanted == "classic":
        return None
    try:
        found = replace(_buildkit(api), architecture=architecture)
    except UsageError:
        if wanted == "buildkit":
            raise
        return None
    return replace(found, output=_ZSTD) if zstd and found.output and engine.keeps_files(api.info()) else found


def _buildkit(api: Any) -> BuildKitBuilder:
    from docker.utils import version_lt

    server = api.version()
    parts = [part.get("Name") for part in server.get("Components") or []]
    # Podman answers as an engine does, but has no BuildKit.
    if "Engine" not in parts or server.get("Os") == "windows" or version_lt(server["ApiVersion"], _API_VERSION):
        raise _none(f"the engine {' '.join([*map(str, parts[:1]), str(server.get('Version'))])} has none")
    docker = shutil.which("docker")
    if docker is None:
        raise _none("there is no docker command on PATH")
    environment = engine.command_environment()
    if _says([docker, "buildx", "version"], environment) is not None:
        # The engine's own BuildKit, whichever builder `docker buildx use` chose: others don't see the engine's images.
        own = ["--builder", environment.get("DOCKER_CONTEXT", "default")]
        # Without them there is one image, as with the classic builder, and not an index of an image and a document.
        environment["BUILDX_NO_DEFAULT_ATTESTATIONS"] = "1"
        environment.pop("SOURCE_DATE_EPOCH", None)
        return BuildKitBuilder(api, command=[docker, "buildx", "build", *own], environment=environment, output=_LOADED)
    said = _says([docker, "--version"], environment) or ""
    version = re.match(r"Docker version (\d+)\.(\d+)", said)
    first, end = _COMMANDS_WITH_BUILDKIT
    if version is None or not first <= (int(version[1]), int(version[2])) < end:
        raise _none(f"{docker} ({said.strip() or 'it does not say its version'}) has no buildx")
    environment["DOCKER_BUILDKIT"] = "1"
    return BuildKitBuilder(api, command=[docker, "build"], environment=environment)


def _none(why: str) -> UsageError:
    return UsageError(
        f"{BUILDER_VARIABLE}=buildkit, but there is no BuildKit: {why}",
        hint=f"install Docker's buildx plugin (docker-buildx-plugin), or unset {BUILDER_VARIABLE}",
    )


def _says(command: list[str], environment: dict[str, str]) -> str | None:
    """What a command prints; None if it fails."""
    try:
        done = subprocess.run(
            command,
            env=environment,
            # Not in the project's folder: docker and its plugins would read what they find there.
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_DETECTION_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


# --- cached downloads ----------------------------------------------------------------------------------------------


def with_cache(step: Step) -> Context:
    """A step's context, whose Dockerfile keeps downloads in BuildKit's cache; a user's own is sent as it is."""
    folder = dockerfiles()
    [given] = (entry for entry in step.context.hashed if entry.path == step.dockerfile)
    if given.source is not None and given.source.parent != folder:
        return step.context
    text = given.source.read_bytes() if given.source else given.content or b""
    rendered = Entry(path=given.path, content=with_cache_mounts(text.decode()).encode())
    tools = (folder / "buildkit").iterdir()
    wrappers = [Entry(path=f"buildkit/{tool.name}", source=tool, executable=True) for tool in tools]
    return replace(
        step.context,
        hashed=tuple(rendered if entry is given else entry for entry in step.context.hashed),
        unhashed=(*step.context.unhashed, *wrappers),
    )


def with_cache_mounts(dockerfile: str) -> str:
    """A Dockerfile for the classic builder with BuildKit's cache mounts: what it builds is the same.

    Every RUN that calls apt-get or pip gets a cache at /mnt, and first on its PATH, at /media, the two of
    dockerfiles/buildkit/, which keep their downloads there. /mnt and /media are in every Linux and empty (Filesystem
    Hierarchy Standard 3.0, 3.11 and 3.12): a mount elsewhere would leave its empty folder in the image, and one at
    /var/cache/apt would hide that folder from the RUN that empties it.
    """
    lines = dockerfile.splitlines(keepends=True)
    begun = 0
    while begun < len(lines):
        end = _end(lines, begun)
        run = _RUN.match(lines[begun])
        text = "".join(line for line in lines[begun:end] if not line.lstrip().startswith("#"))
        if run and _DOWNLOADS.search(text):
            command = lines[begun][run.start("command") :]
            lines[begun] = f"{run['run']}{run['flags']} {_CACHED}{command}"
        begun = end
    return "".join(lines)


def _end(lines: Sequence[str], begun: int) -> int:
    """The number of the line after an instruction; comments and empty lines do not end one."""
    for number in range(begun, len(lines)):
        line = lines[number].strip()
        if not (line.endswith("\\") or (number > begun and (not line or line.startswith("#")))):
            return number + 1
    return len(lines)


# --- the docker command --------------------------------------------------------------------------------------------


def _run(command: list[str], *, environment: dict[str, str], context: Context, log: PlainLog, what: str) -> int:
    """Sends the context to a docker command and reads what it prints; returns its exit code.

    Anything that ends this early, such as Ctrl-C, ends the command, and with it the build.
    """
    process = subprocess.Popen(
        command,
        env=environment,
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # The terminal's Ctrl-C is ours to pass on, once.
        start_new_session=True,
    )
    with ThreadPoolExecutor(max_workers=1) as pool:
        try:
            sending = pool.submit(_send, process, context)
            for line in _lines(process, what=what):
                log.read(line)
            exit_code = process.wait()
            sending.result()
            return exit_code
        finally:
            # A command that has ended takes no more, which ends the thread as well.
            _stop(process)


def _send(process: subprocess.Popen[bytes], context: Context) -> None:
    """Writes a context into a process's standard input."""
    assert process.stdin is not None
    # A command that reads no further has ended, and says why.
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
        for chunk in context.stream():
            pipe.write(chunk)


def _lines(process: subprocess.Popen[bytes], *, what: str) -> Iterator[str]:
    assert process.stdout is not None
    unfinished = b""
    while True:
        if not select.select([process.stdout], [], [], SILENCE_SECONDS)[0]:
            message = f"the build of {what} has said nothing for {SILENCE_SECONDS} s"
            raise ImageError(message, hint="docker info shows whether the engine still runs; then try again")
        chunk = os.read(process.stdout.fileno(), 1 << 16)
        *lines, unfinished = (unfinished + chunk).split(b"\n")
        yield from (line.decode(errors="replace") for line in lines)
        if not chunk:
            yield unfinished.decode(errors="replace")
            return


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ends the command and its plugin. A build whose command is gone is cancelled by the engine.

    One SIGINT asks it to cancel the build, which Docker 20.10's does not always do.
    """
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_CANCEL_SECONDS)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert process.stdout is not None
    process.stdout.close()
