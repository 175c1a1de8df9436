"""What a person is told of a run who does not watch it: when, in which words, and where it is sent. Pure.

Copied into the image: the head sends it with the laptop off.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

from hvdcloud.json_values import mapping, text
from hvdcloud.runs.log_lines import rank_and_text
from hvdcloud.runs.progress import LogReader
from hvdcloud.runs.reports import number
from hvdcloud.runs.state import About, RunState
from hvdcloud.units import counted, dollars, seconds
from hvdcloud.visible import as_left, visible, words

EVENTS = ("end", "failed", "stuck", "lost", "cost")
"""What `notify.on` may name."""
TEST = "test"
"""The event of a notice that only tries whether notices arrive."""
KINDS = ("webhook", "slack")
"""The forms in which a notice is sent; each may have an address."""
COST_SHARE = 0.8
"""Of `limits.max_cost`: what a cluster has cost when the notice of its cost is sent."""
SHOWN_LINES = 15
_LONGEST_LINE = 300
_LONGEST_ADDRESS = 2000
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_NOT_IN_A_URL = re.compile(r"[^\x21-\x7e]")
_GS = "gs://"


def address_problem(address: str) -> str:
    """Why nothing can be sent to an address; empty: something can. The address is a secret and not a part of it."""
    if len(address) > _LONGEST_ADDRESS or _NOT_IN_A_URL.search(address):
        return "is not the address of a web page"
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "is not the address of a web page"
    if parts.scheme not in ("https", "http") or not host or port == 0:
        return "is not an https:// address"
    if parts.scheme == "http" and host not in _LOOPBACK:
        return "is an http:// address; only https:// is encrypted"
    if parts.username is not None or parts.password is not None:
        return "has a user name or a password in it"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where the notices of a run go, and of which events. Holds secrets."""

    addresses: Mapping[str, str] = field(repr=False)
    """By their kind."""
    on: Sequence[str]
    max_cost: float | None = None
    """`limits.max_cost`, in dollars."""
    bucket: str = ""
    """As the user sees it."""
    retries: bool = False
    """The client that follows the run may try it again, and tells itself if it is lost for good."""

    @classmethod
    def from_json(cls, value: object) -> Settings:
        """As the laptop sent them; addresses that cannot be used are left out."""
        given, on = mapping(value), mapping(value).get("on")
        addresses = {kind: text(mapping(given.get("addresses")).get(kind)) for kind in KINDS}
        return cls(
            addresses={kind: url for kind, url in addresses.items() if url and not address_problem(url)},
            on=[event for event in EVENTS if isinstance(on, list) and event in on],
            max_cost=number(given.get("max_cost")),
            bucket=text(given.get("bucket")),
            retries=given.get("retries") is True,
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def event_of(state: RunState, *, on: Sequence[str] = EVENTS) -> str:
    """Which event the end of a run is; one that was stuck has failed where `on` does not name `stuck`."""
    if state.stuck is not None and state.result == "failed" and "stuck" in on:
        return "stuck"
    return {"failed": "failed", "lost": "lost"}.get(state.result, "end")


def cost_so_far(about: About, *, now: float) -> float | None:
    """What a run's cluster has cost, at the rate that it had when the run began, in dollars; None: it costs nothing, or
    that is not known."""
    if not about.dollars_per_hour or about.seen is None:
        return None
    return (about.dollars_before or 0.0) + about.dollars_per_hour * max(0.0, now - about.seen) / 3600


def cost_instant(about: About, *, max_cost: float | None) -> float | None:
    """When the notice of the cost is due, in seconds since the epoch; None: never."""
    if not about.dollars_per_hour or about.seen is None or max_cost is None:
        return None
    return about.seen + (COST_SHARE * max_cost - (about.dollars_before or 0.0)) / about.dollars_per_hour * 3600


def last_lines(log: bytes) -> list[str]:
    """The last lines that ranks printed; without any, those of the whole log."""
    lines = [line for line in log.split(b"\n") if line.strip()]
    ranks = [line for line in lines if rank_and_text(line) is not None]
    return shown([as_left(line.decode(errors="backslashreplace")) for line in (ranks or lines)[-SHOWN_LINES:]])


def shown(lines: Sequence[str]) -> list[str]:
    """A job's lines as they are sent: nothing in them acts on a terminal."""
    seen = [visible(line.rstrip(), lines=False) for line in lines]
    return [line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}…" for line in seen]


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One message about a run."""

    event: str
    cluster: str
    run: str
    result: str = ""
    """succeeded | failed | stopped | lost; empty while it runs"""
    exit_code: int | None = None
    reason: str = ""
    seconds: float | None = None
    dollars: float | None = None
    max_cost: float | None = None
    checkpoint_files: int | None = None
    checkpoints_complete: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The newest of each number that it printed: `loss`, `accuracy`."""
    last_lines: Sequence[str] = ()
    """Of a run that failed, those of the first rank to fail."""
    bucket: str = ""

    @classmethod
    def of(cls, state: RunState, *, event: str, settings: Settings, log: bytes, now: float) -> Notice:
        """About a run as its head knows it.

        Args:
            log: its end.
            now: seconds since the epoch.
        """
        until = state.ended or now
        reader = LogReader(elastic=state.elastic is not None)
        reader.feed(log)
        failure = reader.failure(state)
        # Of a rank's end, its log says more: the exception and its lines.
        known = failure is not None and any(record.text == state.reason for record in state.ranks)
        return cls(
            event=event,
            cluster=state.cluster,
            run=state.run,
            result=visible(words(state.result)),
            exit_code=state.exit_code,
            reason=visible(words(failure.reason if failure is not None and known else state.reason)),
            seconds=until - state.started if state.started else None,
            dollars=cost_so_far(About.from_json(state.about), now=now),
            max_cost=settings.max_cost,
            checkpoint_files=state.checkpoints.files - state.checkpoints.others if state.done else None,
            checkpoints_complete=state.checkpoints.complete,
            metrics=reader.metrics,
            last_lines=shown(failure.lines) if failure is not None and failure.lines else last_lines(log),
            bucket=settings.bucket,
        )

    @property
    def id(self) -> str:
        """The same for each attempt to send it."""
        return f"{self.cluster}/{self.run}/{self.event}"

    @property
    def headline(self) -> str:
        """The notice in one line."""
        if self.event == TEST:
            return f"{self.cluster}: a test of hvdcloud doctor --notify; notices of runs arrive here"
        after = f" after {seconds(self.seconds)}" if self.seconds is not None else ""
        why = f": {self.reason}" if self.reason else ""
        said = {
            "end": f"{self.result or 'has ended'}{after}",
            "failed": f"failed{after}{why}",
            "stuck": f"failed{after}{why}",
            "lost": f"was lost{after}{why}",
            "cost": f"continues; its cluster has cost {dollars(self.dollars or 0.0)} of the "
            f"{dollars(self.max_cost or 0.0)} of limits.max_cost",
        }[self.event]
        parts = [f"{self.cluster}: run {self.run} {said}"]
        if self.metrics and self.event in ("end", "cost"):
            parts.append(", ".join(f"{name} {value:.4g}" for name, value in self.metrics.items()))
        if self.event != "cost" and self.dollars is not None:
            parts.append(dollars(self.dollars))
        if self.checkpoint_files is not None:
            parts.append(self._checkpoints(self.checkpoint_files))
        return " · ".join(parts)

    def _checkpoints(self, files: int) -> str:
        if not files:
            return "no checkpoints" if self.checkpoints_complete else "the checkpoints are NOT all in the bucket"
        counted_files = counted(files, "checkpoint file")
        return (
            f"{counted_files}, all in the bucket"
            if self.checkpoints_complete
            else f"{counted_files} in the bucket, NOT all"
        )

    @property
    def objects(self) -> dict[str, str]:
        """What is left of the run in its bucket, and a page that shows it; without a bucket none."""
        if not self.bucket or not self.run:
            return {}
        folder = f"{self.bucket.rstrip('/')}/{self.cluster}/{self.run}"
        found = {"log": f"{folder}/.hvdcloud/log", "state": f"{folder}/.hvdcloud/state.json"}
        if folder.startswith(_GS):
            page = "https://console.cloud.google.com/storage/browser/"
            found["page"] = page + quote(folder.removeprefix(_GS))
        return found

    @property
    def command(self) -> str:
        """What to type next."""
        if not self.run:
            return f"hvdcloud run --name {self.cluster}"
        return f"hvdcloud report {self.run} --name {self.cluster}"

    def body(self, kind: str) -> dict[str, Any]:
        """The JSON object that is sent to an address of this kind."""
        return {"text": self._slack_text()} if kind == "slack" else self._webhook()

    def _webhook(self) -> dict[str, Any]:
        found = asdict(self)
        del found["bucket"]
        return {
            "version": 1,
            "id": self.id,
            "text": self.headline,
            **found,
            "objects": self.objects,
            "command": self.command,
        }

    def _slack_text(self) -> str:
        """https://docs.slack.dev/messaging/formatting-message-text: three characters are escaped."""
        lines = [f"*{_for_slack(self.headline)}*"]
        if self.last_lines:
            block = "\n".join(self.last_lines)
            lines.append(f"```{_for_slack(block)}```")
        if page := self.objects.get("page"):
            lines.append(f"<{page}|{_for_slack(f'{self.cluster}/{self.run}')}> in the bucket")
        return "\n".join([*lines, f"`{_for_slack(self.command)}`"])


def _for_slack(said: str) -> str:
    # A backtick could begin or end a block.
    return said.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("`", "'")
