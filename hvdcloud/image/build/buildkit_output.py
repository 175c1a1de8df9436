"""What the docker command prints while BuildKit builds (`--progress=plain`): progress, and the error if there is one.

    #5 [tools 2/3] RUN apt-get update
    #5 0.345 Get:1 http://deb.debian.org/debian bookworm InRelease
    #5 ERROR: process "/bin/sh -c apt-get update" did not complete successfully: exit code: 100

The number is that of a piece of work; several run at once. The form is the same in every version, from Docker 20.10's
to buildx's: https://github.com/moby/buildkit/blob/v0.13.0/util/progress/progressui/printer.go
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field

from hvdcloud.errors import ImageError
from hvdcloud.image.engine_stream import KEPT_LINES, BuildEvent, Progress, Tail, build_error, lines_of, short

_WORK = re.compile(r"#(\d+) (.+)")
_INSTRUCTION = re.compile(r"\[(?:(?P<stage>[^\]]*?) )? *(?P<step>\d+)/(?P<steps>\d+)\] (?P<text>.+)")
# What hvdcloud.image.build.buildkit puts before a command.
_MOUNTS = re.compile(r"(?:--mount=\S+ )+(?:export PATH=\"/media:[^\"]*\"; )?")
_BASE_IMAGE = re.compile(r"\[internal\] load metadata for (\S+)")
_OUTPUT = re.compile(r"\d+\.\d+ (.*)")
_PULLED = re.compile(r"sha256:([0-9a-f]{12})[0-9a-f]{52} (.*\d.*)")
_DONE = re.compile(r"CACHED|DONE \d.*")
_ERROR = "ERROR: "
# The parts that passed the error on, before the error itself.
_VIA = re.compile(
    r"(?:ERROR: |failed to solve: |failed to solve with frontend \S+: |failed to create LLB definition: "
    r"|rpc error: code = \w+ desc = )+"
)
_EXIT_CODE = re.compile(r"(?:executor failed running|process) .*exit code: (\d+)", re.DOTALL)


@dataclass(slots=True, kw_only=True)
class PlainLog:
    """Reads it line by line.

    Attributes:
        pip_hint: what to do if it is pip that fails.
        progress: called for every instruction, those whose result is in BuildKit's cache included, and every line.
    """

    image: str
    pip_hint: str
    progress: Progress
    _work: dict[str, Tail] = field(default_factory=dict)
    _stages: dict[str, int] = field(default_factory=dict)
    """How many instructions each stage has, as far as they are known."""
    _steps: dict[str, int] = field(default_factory=dict)
    """Work that is an instruction → its place among them."""
    _last: Tail = field(default_factory=lambda: Tail(where="before its first step"))
    _failed: tuple[Tail, str] | None = None
    _closing: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))

    def read(self, line: str) -> None:
        """One line, without its end."""
        line = line.rstrip()
        work = _WORK.fullmatch(line)
        if not work:
            if line:
                self._closing.append(line)
            return
        number, text = work.groups()
        instruction = _INSTRUCTION.fullmatch(text)
        base_image = _BASE_IMAGE.fullmatch(text)
        if instruction and number not in self._work:
            self._begin(number, instruction)
        elif base_image:
            self._work.setdefault(number, Tail(where=f"at its start: FROM {base_image[1]}"))
        else:
            self._continue(number, text)

    def error(self) -> ImageError:
        """What went wrong, for a command that has ended with something else than success."""
        tail, text = self._failed or (self._last, self._closing[-1] if self._closing else "it does not say why")
        if self._failed is None:
            tail.lines.extend(_VIA.sub("", line, count=1) for line in self._closing)
        text = _VIA.sub("", text, count=1)
        code = _EXIT_CODE.match(text)
        text = f"the command ended with exit code {code[1]}" if code else text
        return build_error(text, image=self.image, tail=tail, pip_hint=self.pip_hint)

    def _begin(self, number: str, instruction: re.Match[str]) -> None:
        stage, steps = instruction["stage"] or "", int(instruction["steps"])
        self._stages[stage] = steps
        self._steps[number] = len(self._steps) + 1
        text = short(_MOUNTS.sub("", instruction["text"], count=1))
        of = f" of {stage}" if stage else ""
        self._last = self._work[number] = Tail(where=f"at step {instruction['step']}/{steps}{of}: {text}")
        total = max(len(self._steps), sum(self._stages.values()))
        self.progress(BuildEvent(kind="step", text=text, step=self._steps[number], steps=total))

    def _continue(self, number: str, text: str) -> None:
        tail = self._work.setdefault(number, Tail(where=self._last.where))
        step = self._steps.get(number, 0)
        output = _OUTPUT.fullmatch(text)
        pulled = _PULLED.fullmatch(text)
        if output:
            for line in lines_of(output[1]):
                tail.lines.append(line)
                self.progress(BuildEvent(kind="output", text=line, step=step))
        elif pulled:
            self.progress(BuildEvent(kind="layer", text=f"{pulled[1]}: {pulled[2]}"))
        elif step and _DONE.fullmatch(text):
            self.progress(BuildEvent(kind="done", text="", step=step))
        elif text.startswith(_ERROR) and self._failed is None and "context canceled" not in text:
            self._failed = (tail, text)
