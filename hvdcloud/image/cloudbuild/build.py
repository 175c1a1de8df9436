"""A plan's images, built by Cloud Build."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hvdcloud.errors import CapacityError, CredentialsError, HvdcloudError, ImageError, InterruptedByUserError
from hvdcloud.google import grants
from hvdcloud.image import engine_stream
from hvdcloud.image.cloudbuild.client import RUNNING, CloudBuild
from hvdcloud.image.cloudbuild.error_catalogue import BUCKET_ROLE, MAKE_ACCOUNT, NO_ACCOUNT, PUSH_ROLE, READ_LOG_ROLE
from hvdcloud.image.cloudbuild.log import BuildLog
from hvdcloud.image.cloudbuild.request import Names, Source, build_request, content_tag, names_of
from hvdcloud.image.cloudbuild.source import FOLDER, merged, send
from hvdcloud.image.engine_stream import BuildEvent, Progress
from hvdcloud.image.publish import registry

if TYPE_CHECKING:
    from hvdcloud.config.model import ImageConfig
    from hvdcloud.image.plan.steps import ImagePlan, Step
    from hvdcloud.storage.gcs import GcsBucket

POLL_SECONDS = 1.0
LATE_LOG_SECONDS = 5.0
"""How long the log's end is waited for once a build has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteResult:
    """An image that is at the registry.

    Attributes:
        reference: `HOST/PATH:TAG`.
        digest: the registry's (`sha256:…`).
        cached: nothing was built, because it existed.
    """

    reference: str
    digest: str
    cached: bool


@dataclass(slots=True, kw_only=True)
class RemoteBuilder:
    """Cloud Build, and the bucket through which it gets its source and says what it does.

    Args:
        bucket: where builds keep their files, below `.hvdcloud/builds`.
        log_bucket: the same, with little patience.
        config: the `image` section of hvdcloud.yaml.
        progress: called for every step and every line of output; `image` events are for people who wait.
        poll_seconds: between two questions about the build.
        settled_at: until then (seconds of `time.time()`) Cloud Build may refuse what is granted already.
    """

    client: CloudBuild
    bucket: GcsBucket
    log_bucket: GcsBucket
    config: ImageConfig
    progress: Progress
    poll_seconds: float = POLL_SECONDS
    settled_at: float = 0.0
    _attempt: str = ""
    """Tag of the build that this command has asked for."""

    def build(self, plan: ImagePlan, *, repository: str) -> RemoteResult:
        """Builds and pushes the plan's image, unless it is at the registry, `image.repository`.

        Raises:
            UsageError, CapacityError: the configuration does not suit the project.
            CredentialsError: the API is switched off, or a role is missing: whose and which is said.
            ImageError: a step failed (`details` has its last lines), or Cloud Build can't be reached.
            InterruptedByUserError: Ctrl-C; the build is cancelled.
        """
        names = names_of(plan, repository)
        digest = self._there(names.wanted)
        if digest is not None:
            return RemoteResult(reference=names.wanted[0], digest=digest, cached=True)
        todo = self._missing(plan, names)
        try:
            build = self._running(plan, names) or self._started(plan, todo, names)
            self._say(f"build {build['id']}: {build.get('logUrl', '')}")
            ended = self._followed(build, {names.ids[step.reference]: step for step in plan.steps})
        except CredentialsError as error:
            if error.hint in (BUCKET_ROLE, PUSH_ROLE) and self.config.remote.service_account is None:
                error.hint = MAKE_ACCOUNT
            raise
        except KeyboardInterrupt:
            raise self._interrupted(plan) from None
        return self._result(ended, names)

    def _there(self, tags: Sequence[str]) -> str | None:
        """The digest, if all tags stand for the same image at the registry."""
        digests = {registry.digest_at_registry(tag) for tag in tags}
        return digests.pop() if len(digests) == 1 else None

    def _missing(self, plan: ImagePlan, names: Names) -> list[Step]:
        """The steps to do: the last one, and what it needs as far as the registry doesn't have it."""
        needed = {plan.last.reference}
        todo: list[Step] = []
        for step in reversed(plan.steps):
            if step.reference not in needed:
                continue
            if step is not plan.last and self._there((names.content[step.reference],)) is not None:
                self._say(f"{step.what}: at the registry already")
            else:
                todo.insert(0, step)
                needed.update(step.needs)
        return todo

    def _running(self, plan: ImagePlan, names: Names) -> dict[str, Any] | None:
        """A build of the same image that is on its way, such as one whose laptop was closed."""
        for build in self.client.tagged(content_tag(plan)):
            same = (build.get("images"), build.get("logsBucket")) == (list(names.wanted), self._logs)
            if build["status"] in RUNNING and same:
                self._say("it is being built already; Ctrl-C leaves that build alone")
                return build
        return None

    def _started(self, plan: ImagePlan, todo: Sequence[Step], names: Names) -> dict[str, Any]:
        contexts = {names.ids[step.reference]: step.context for step in todo}
        context = merged(contexts, keep_ca_bundle=self.config.ca_bundle is not None)
        sent = send(self.bucket, context, progress=self.progress)
        bucket, _, prefix = self.bucket.url.removeprefix("gs://").partition("/")
        self._attempt = f"hvdcloud-attempt-{secrets.token_hex(8)}"
        request = build_request(
            plan,
            todo,
            names=names,
            source=Source(bucket=bucket, name=f"{prefix}/{sent.name}".lstrip("/"), generation=sent.generation),
            attempt=self._attempt,
            project=self.client.project,
            logs=self._logs,
            machine_type=self.config.remote.machine_type,
            service_account=self.config.remote.service_account,
        )
        if self.config.remote.service_account is None:
            self.progress(BuildEvent(kind="warning", text=NO_ACCOUNT))
        while True:
            try:
                return self.client.create(request)
            except CredentialsError:
                if time.time() >= self.settled_at:
                    raise
            self._say(grants.waiting(self.settled_at))
            time.sleep(grants.PAUSE_SECONDS)

    @property
    def _logs(self) -> str:
        return f"{self.bucket.url}/{FOLDER}"

    def _followed(self, build: Mapping[str, Any], steps: Mapping[str, Step]) -> dict[str, Any]:
        """Shows the log until the build, with its steps by id, has ended; returns the build as it is then.

        Raises:
            ImageError, CredentialsError: it has not succeeded.
        """
        name = f"{FOLDER}/log-{build['id']}.txt"
        ids = [step.get("id", "") for step in build.get("steps", [])]
        if len(ids) == 1 and ids[0] in steps:
            steps = {**steps, "BUILD": steps[ids[0]]}
        log = BuildLog(self.log_bucket, name, names=_words(steps), steps=steps, progress=self.progress)
        readable = True
        status = ""
        while True:
            now = self.client.get(build["id"])
            if now["status"] != status and now["status"] in RUNNING:
                status = now["status"]
                self._say("building" if status == "WORKING" else "waiting for a machine")
            readable = readable and self._polled(log)
            if now["status"] not in RUNNING:
                break
            time.sleep(self.poll_seconds)
        deadline = time.monotonic() + LATE_LOG_SECONDS
        while readable and not log.complete and now["status"] == "FAILURE" and time.monotonic() < deadline:
            time.sleep(self.poll_seconds / 4)
            self._polled(log)
        if now["status"] != "SUCCESS":
            raise _failure(now, steps, log)
        return now

    def _polled(self, log: BuildLog) -> bool:
        """Reads on in the log; False if it may not be read, which is said once."""
        try:
            log.poll()
        except CredentialsError as error:
            self.progress(BuildEvent(kind="warning", text=f"the log can't be shown: {error.message}; {READ_LOG_ROLE}"))
            return False
        return True

    def _interrupted(self, plan: ImagePlan) -> HvdcloudError:
        """Cancels the build that this command has started."""
        again = "hvdcloud build --remote builds it again; what was pushed before is used"
        for build in self.client.tagged(self._attempt) if self._attempt else ():
            self.client.cancel(build["id"])
            return InterruptedByUserError(f"build {build['id']} of {plan.reference} is cancelled", hint=again)
        return InterruptedByUserError("interrupted; no build was started from here", hint=again)

    def _result(self, build: Mapping[str, Any], names: Names) -> RemoteResult:
        pushed = {image["name"]: image["digest"] for image in build.get("results", {}).get("images", [])}
        digest = pushed.get(names.wanted[0]) or self._there(names.wanted[:1])
        if digest is None:
            message = f"build {build['id']} succeeded, but {names.wanted[0]} is not at the registry"
            raise ImageError(message, hint="hvdcloud build --remote builds it again")
        return RemoteResult(reference=names.wanted[0], digest=digest, cached=False)

    def _say(self, text: str) -> None:
        self.progress(BuildEvent(kind="image", text=text))


def _words(steps: Mapping[str, Step]) -> dict[str, str]:
    """What the parts of a build's log are about."""
    words = {step_id: step.what for step_id, step in steps.items()}
    return {**words, **{f"push-{kind}": f"pushing {what}" for kind, what in words.items()}, "PUSH": "pushing the image"}


def _failure(build: Mapping[str, Any], steps: Mapping[str, Step], log: BuildLog) -> HvdcloudError:
    """Why a build that has ended has no image."""
    where = f"build {build['id']}"
    url = f"the whole log: {build.get('logUrl', '')}"
    detail = build.get("failureInfo", {}).get("detail") or build.get("statusDetail", "")
    kind = build.get("failureInfo", {}).get("type", "")
    status = build["status"]
    said = log.tail.text()
    if status == "CANCELLED":
        return ImageError(f"{where} was cancelled, not from here", hint="hvdcloud build --remote builds it again")
    if status == "TIMEOUT":
        hint = f"set image.remote.machine_type to a larger one; {url}"
        return ImageError(f"{where} took longer than {build.get('timeout', 'it may')}", hint=hint, details=said)
    if status == "EXPIRED":
        message = f"{where} waited longer than {build.get('queueTtl', 'it may')} for a machine"
        return CapacityError(message, hint="try again later, or set image.remote.region to another one")
    last = (said.splitlines() or [""])[-1]
    failed = next((str(step.get("id", "")) for step in build.get("steps", []) if step.get("status") == "FAILURE"), None)
    pushing = failed is None or failed.startswith("push-")
    refused = kind in ("PUSH_FAILED", "USER_BUILD_STEP") and pushing and engine_stream.says_refused(said)
    if kind == "PUSH_NOT_AUTHORIZED" or refused:
        return CredentialsError(f"{where} may not push the image: {last or detail}", hint=PUSH_ROLE, details=said)
    if kind == "LOGGING_FAILURE":
        return CredentialsError(f"{where} could not write its log: {detail}", hint=BUCKET_ROLE, details=said)
    step = steps.get(failed or "")
    if step is not None and log.tail.lines:
        text = log.tail.lines.pop().removeprefix("ERROR: ")
        return engine_stream.build_error(text, image=step.what, tail=log.tail, pip_hint=step.pip_hint)
    why = detail or last or "it does not say why"
    return ImageError(f"{where} failed ({status}): {why}", hint=url, details=said)
