"""A build's log: read from the bucket as it grows, and understood as far as progress and errors need.

    BUILD
    Starting Step #0 - "builder"
    Step #0 - "builder": Step 3/9 : RUN pip install …
    Finished Step #0 - "builder"
    ERROR
    ERROR: build step 0 "gcr.io/cloud-builders/docker" failed: step exited with non-zero status: 1

A build with one step has neither the lines around it nor a prefix before its lines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

from hvdcloud.image.cloudbuild.request import DOCKER
from hvdcloud.image.engine_stream import BuildEvent, Progress, Tail, lines_of, short
from hvdcloud.image.stages import stage_of
from hvdcloud.storage.base import BucketUnreachableError

if TYPE_CHECKING:
    from hvdcloud.image.plan.steps import Step
    from hvdcloud.storage.gcs import GcsBucket

_BEGIN = re.compile(r'Starting Step #\d+ - "(.+)"')
_PREFIX = re.compile(r'Step #\d+(?: - "[^"]*")?: ?')
_OVER = frozenset({"DONE", "ERROR", "TIMEOUT", "CANCELLED"})
_OWN_LINES = re.compile(r"FETCHSOURCE|BUILD|Finished Step #.*|ERROR: (?:build step \d+ |context ).*")
# What the classic builder says of an instruction, and what BuildKit does.
_INSTRUCTION = re.compile(r"(?:Step |#\d+ \[(?:\S+ )?)(?P<step>\d+)/(?P<steps>\d+)(?: : |\] )(?P<text>.+)")
_BUILDKIT = re.compile(r"#\d+ (?:\d+\.\d+ )?")
_CHATTER = re.compile(
    r"$| ?---> |Removing intermediate container |Successfully (?:built|tagged) |Sending build context |"
    rf"DEPRECATED: The legacy builder |\s+Install the buildx component |\s+https://docs\.docker\.com/go/buildx/|"
    rf"Already have image .*{re.escape(DOCKER)}"
)


@dataclass(slots=True)
class BuildLog:
    """One build's log.

    Attributes:
        bucket: where it is, opened with little patience: what can't be read now is read the next time.
        name: of the object.
        names: a step's id, BUILD or PUSH → what is done then, for people.
        steps: a step's id, or BUILD if it is the only one → the step.
        complete: its last line is here.
        tail: of the current step, or of the push at the end.
    """

    bucket: GcsBucket
    name: str
    _: KW_ONLY
    names: Mapping[str, str]
    steps: Mapping[str, Step]
    progress: Progress
    complete: bool = False
    tail: Tail = field(default_factory=Tail)
    _read: int = 0
    _unfinished: bytes = b""
    _step: Step | None = None
    _number: int = 0

    def poll(self) -> None:
        """Takes in what is new. Raises CredentialsError: it may not be read."""
        try:
            new = self.bucket.read_from(self.name, self._read)
        except BucketUnreachableError:
            # A log is not worth failing for; the build's status is.
            return
        self._read += len(new)
        whole, newline, self._unfinished = (self._unfinished + new).rpartition(b"\n")
        for line in lines_of((whole + newline).decode(errors="replace")):
            self._take(line)

    def _take(self, line: str) -> None:
        begin = _BEGIN.fullmatch(line)
        if begin or line in ("BUILD", "PUSH"):
            part = begin[1] if begin else line
            what, self._step, self._number = self.names.get(part), self.steps.get(part), 0
            self.tail = Tail(where="before its first step")
            if what is not None:
                self.progress(BuildEvent(kind="image", text=what))
            return
        self.complete = self.complete or line in _OVER
        said = _PREFIX.sub("", line, count=1)
        if line in _OVER or _OWN_LINES.fullmatch(line) or _CHATTER.match(said):
            return
        if found := _INSTRUCTION.fullmatch(said):
            step, steps, text = int(found["step"]), int(found["steps"]), short(found["text"])
            self.tail = Tail(where=f"at step {step}/{steps}: {text}")
            if self._number:
                self.progress(BuildEvent(kind="done", text="", step=self._number))
            self._number = step
            stage = stage_of(self._step, text) if self._step else ""
            self.progress(BuildEvent(kind="step", text=text, step=step, steps=steps, stage=stage))
            return
        said = _BUILDKIT.sub("", said, count=1)
        self.progress(BuildEvent(kind="output", text=said, step=self._number))
        self.tail.lines.append(said)
