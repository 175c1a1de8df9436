"""A build is carried out: the source fetched and unpacked, each step run by the Docker engine of this machine, the
images pushed. What it leaves on the engine is removed: the real worker is a VM of its own."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import docker
import requests
from docker.errors import APIError, ImageNotFound

from tests.standins.cloudbuild.build import DOCKER, Build, now, seconds
from tests.standins.cloudbuild.storage import GrowingLog, Storage


class _EndedError(Exception):
    """The build ends here, with this status."""

    def __init__(self, status: str, detail: str, *, failure: str = "") -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.failure = failure


class Worker:
    """Carries out one build.

    Args:
        token: of the builder's service account, for the registry.
        time_scale: by which the build's timeout is multiplied.
        update: changes the build's resource under the server's lock.
    """

    def __init__(
        self,
        build: Build,
        *,
        storage: Storage,
        token: str,
        time_scale: float,
        log_seconds: float,
        update: Callable[[Build, dict[str, Any]], None],
    ) -> None:
        self._build = build
        self._storage = storage
        self._token = token
        self._time_scale = time_scale
        self._update = update
        self._steps: list[dict[str, Any]] = [dict(step) for step in build.resource["steps"]]
        self._images: list[str] = build.resource["images"]
        self._layers: list[str] = []
        self._containers: list[str] = []
        self._deadline = 0.0
        self._timing: dict[str, dict[str, str]] = {}
        self._log = GrowingLog(
            storage,
            logs_bucket=build.resource.get("logsBucket", ""),
            build_id=build.id,
            every=log_seconds,
        )

    def run(self, *, queue_seconds: float, scripted: str | None) -> None:
        """From QUEUED to the end.

        Args:
            scripted: the status that it ends with instead of doing anything.
        """
        result: dict[str, Any] = {}
        try:
            if self._build.cancelled.wait(queue_seconds):
                raise _EndedError("CANCELLED", "")
            if queue_seconds > seconds(self._build.resource["queueTtl"]) * self._time_scale:
                raise _EndedError("EXPIRED", "build expired in the queue")
            self._deadline = time.monotonic() + seconds(self._build.resource["timeout"]) * self._time_scale
            self._update(self._build, {"status": "WORKING", "startTime": now()})
            self._log.line(f'starting build "{self._build.id}"\n')
            if scripted:
                raise _EndedError(scripted, "a scripted end")
            with ExitStack() as stack:
                workspace = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cloudbuild-")))
                config = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cloudbuild-docker-")))
                stack.enter_context(
                    _engine_as_before(self._mentioned(), layers=self._layers, containers=self._containers)
                )
                result = self._work(workspace, self._docker_environment(config))
            self._log.line("DONE")
            result["status"] = "SUCCESS"
        except _EndedError as end:
            self._log.line({"FAILURE": "ERROR"}.get(end.status, end.status))
            if end.detail:
                self._log.line(f"ERROR: {end.detail}")
            result = {"status": end.status, "statusDetail": end.detail}
            if end.failure:
                result["failureInfo"] = {"type": end.failure, "detail": f"Build step failure: {end.detail}"}
        except Exception as error:
            result = {"status": "INTERNAL_ERROR", "statusDetail": f"a bug in the stand-in: {error!r}"}
            raise
        finally:
            self._log.close()
            self._update(self._build, {**result, "finishTime": now(), "timing": self._timing, "steps": self._steps})

    def _work(self, workspace: Path, environment: dict[str, str]) -> dict[str, Any]:
        if "source" in self._build.resource:
            self._timed("FETCHSOURCE", lambda: self._fetch(workspace))
        self._timed("BUILD", lambda: self._run_steps(workspace, environment))
        pushed = self._timed("PUSH", lambda: self._push(environment)) if self._images else []
        return {"results": {"images": pushed, "buildStepImages": ["" for _ in self._steps]}}

    def _timed(self, phase: str, work: Callable[[], Any]) -> Any:
        self._log.line(phase)
        began = now()
        try:
            return work()
        finally:
            self._timing[phase] = {"startTime": began, "endTime": now()}

    # -- the phases --------------------------------------------------------------------------------------------------

    def _fetch(self, workspace: Path) -> None:
        source = self._build.resource["source"]["storageSource"]
        name = f"gs://{source['bucket']}/{source['object']}#{source['generation']}"
        self._log.line(f"Fetching storage object: {name}")
        self._log.line(f"Copying {name}...")
        with tempfile.TemporaryDirectory(prefix="cloudbuild-source-") as folder:
            archive = Path(folder) / "source.tar.gz"
            try:
                size = self._storage.fetch(source, archive)
                if not source["object"].endswith((".tar.gz", ".tgz")):
                    raise tarfile.ReadError("only .tar.gz and .tgz are known here")
                with tarfile.open(archive, "r:gz") as tar:
                    tar.extractall(workspace, filter="data")
            except (requests.HTTPError, tarfile.TarError) as error:
                raise _EndedError("FAILURE", f"fetching source: {error}", failure="FETCH_SOURCE_FAILED") from error
        self._log.line(f"Operation completed over 1 objects/{size / 1024:.1f} KiB.")

    def _run_steps(self, workspace: Path, environment: dict[str, str]) -> None:
        alone = len(self._steps) == 1
        for number, step in enumerate(self._steps):
            title = f"Step #{number}" + (f' - "{step["id"]}"' if step.get("id") else "")
            prefix = "" if alone else f"{title}: "
            if not alone:
                self._log.line(f"Starting {title}")
            began = now()
            step["status"] = "FAILURE"
            try:
                self._run_step(number, step, workspace, environment, prefix=prefix)
                step["status"] = "SUCCESS"
            except _EndedError as end:
                step["status"] = end.status
                raise
            finally:
                step["timing"] = {"startTime": began, "endTime": now()}
                if not alone:
                    self._log.line(f"Finished {title}")

    def _run_step(
        self, number: int, step: dict[str, Any], workspace: Path, environment: dict[str, str], *, prefix: str
    ) -> None:
        if step["name"] != DOCKER:
            self._log.line(f"Pulling image: {step['name']}", prefix=prefix)
            detail = f'error pulling build step {number} "{step["name"]}": generic::unknown: retry budget exhausted'
            raise _EndedError("FAILURE", f"{detail} (10 attempts): step exited with non-zero status: 1")
        self._log.line(f"Already have image (with digest): {DOCKER}", prefix=prefix)
        folder = workspace / step.get("dir", "")
        # The real one makes the folder of a step that isn't there.
        folder.mkdir(parents=True, exist_ok=True)
        variables = dict(entry.split("=", 1) for entry in step.get("env", []))
        code = self._docker(step.get("args", []), folder, {**environment, **variables}, prefix=prefix)
        step["exitCode"] = code
        if code:
            detail = f'build step {number} "{DOCKER}" failed: step exited with non-zero status: {code}'
            raise _EndedError("FAILURE", detail, failure="USER_BUILD_STEP")

    def _push(self, environment: dict[str, str]) -> list[dict[str, Any]]:
        pushed = []
        for image in self._images:
            self._log.line(f"Pushing {image}")
            began = now()
            lines: list[str] = []
            code = self._docker(["push", image], Path("/"), environment, lines=lines)
            said = "\n".join(lines)
            if code:
                kind = "PUSH_FAILED"
                if "does not exist locally" in said:
                    kind = "PUSH_IMAGE_NOT_FOUND"
                elif re.search(r"denied|unauthorized|authentication required", said):
                    kind = "PUSH_NOT_AUTHORIZED"
                detail = f'failed to push image "{image}": {lines[-1] if lines else code}'
                raise _EndedError("FAILURE", detail, failure=kind)
            digest = re.search(r"digest: (sha256:[0-9a-f]{64})", said)
            assert digest, said
            timing = {"startTime": began, "endTime": now()}
            pushed.append({"name": image, "digest": digest[1], "pushTiming": timing})
        return pushed

    # -- the docker command -------------------------------------------------------------------------------------------

    def _docker(
        self,
        arguments: Sequence[str],
        folder: Path,
        environment: dict[str, str],
        *,
        prefix: str = "",
        lines: list[str] | None = None,
    ) -> int:
        """Runs it to its end; returns the exit code.

        Raises:
            _EndedError: the build was cancelled, or its time is over.
        """
        process = subprocess.Popen(
            [str(shutil.which("docker")), *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                self._log.line(line.rstrip("\n"), prefix=prefix)
                if layer := re.match(r" ---> ([0-9a-f]{12})$", line):
                    self._layers.append(layer[1])
                if container := re.match(r" ---> Running in ([0-9a-f]{12})$", line):
                    self._containers.append(container[1])
                if lines is not None:
                    lines.append(line.rstrip("\n"))

        reader = threading.Thread(target=read)
        reader.start()
        try:
            while process.poll() is None:
                if self._build.cancelled.wait(0.02):
                    raise _EndedError("CANCELLED", "context canceled")
                if time.monotonic() > self._deadline:
                    raise _EndedError("TIMEOUT", "context deadline exceeded")
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait()
            reader.join()
        return process.returncode

    def _docker_environment(self, config: Path) -> dict[str, str]:
        """For the command: the builder's own credentials, and nothing of this machine's but where the engine is."""
        login = base64.b64encode(f"oauth2accesstoken:{self._token}".encode()).decode()
        hosts = {image.partition("/")[0] for image in self._mentioned()}
        (config / "config.json").write_text(json.dumps({"auths": {host: {"auth": login} for host in sorted(hosts)}}))
        kept = {name: os.environ[name] for name in ("PATH", "DOCKER_HOST") if name in os.environ}
        return {**kept, "HOME": str(config), "DOCKER_CONFIG": str(config)}

    def _mentioned(self) -> set[str]:
        """Images in the repositories that this build pushes to, by every name that is in its steps."""
        repositories = tuple(f"{image.rpartition(':')[0]}:" for image in self._images)
        words = [word.rpartition("=")[2] for step in self._steps for word in step.get("args", [])]
        return {word for word in (*words, *self._images) if word.startswith(repositories)}


@contextlib.contextmanager
def _engine_as_before(names: set[str], *, layers: Sequence[str], containers: Sequence[str]) -> Iterator[None]:
    """After the block the engine has none of what the block made or pulled.

    Args:
        names: of images that may come; one that was there before stays.
        layers: ids of the images that the block went through, also of those that never had a name.
        containers: ids of those that it started; one whose command failed is still there.
    """
    # Not with the docker command, which costs more than what it asks for.
    with contextlib.closing(docker.from_env().api) as api:
        known = {found["Id"] for found in api.images(all=True)}
        new = [name for name in sorted(names) if _inspected(api, name) is None]
        try:
            yield
        finally:
            for container in containers:
                with contextlib.suppress(APIError):
                    api.remove_container(container, force=True)
            for name in new:
                with contextlib.suppress(APIError):
                    api.remove_image(name)
            for layer in reversed(layers):
                found = _inspected(api, layer)
                if found is not None and found["Id"] not in known and not found["RepoTags"]:
                    with contextlib.suppress(APIError):
                        api.remove_image(layer)


def _inspected(api: Any, image: str) -> dict[str, Any] | None:
    """What the engine says of an image; None if it isn't there."""
    with contextlib.suppress(ImageNotFound):
        return dict(api.inspect_image(image))
    return None
