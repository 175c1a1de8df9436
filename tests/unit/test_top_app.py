"""`hvdcloud top` as its user drives it: keys, wheel, size of the terminal. Textual's pilot has no terminal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timezone

from textual.pilot import Pilot

from hvdcloud.cli.screen import head
from hvdcloud.cli.top_app import TopApp
from hvdcloud.lifecycle.top import View
from hvdcloud.runs.state import Member
from tests.support.views import cluster, node, run, view

Scene = Callable[["Seen"], Awaitable[None]]


class Seen:
    """The app with a view that a test changes, and its screen as text."""

    def __init__(self, what: View) -> None:
        self.what = what
        self.app = TopApp(lambda: self.what)
        self.pilot: Pilot[Exception]

    def play(self, scene: Scene, *, size: tuple[int, int] = (80, 24)) -> Exception | None:
        async def run() -> None:
            async with self.app.run_test(size=size, notifications=True) as self.pilot:
                await self.until(lambda text: "q quits" in text)
                await scene(self)

        asyncio.run(run())
        return self.app.return_value

    @property
    def lines(self) -> list[str]:
        """What is on the screen, the question above it included."""
        strips = self.app.screen._compositor.render_strips(self.app.size)
        return ["".join(segment.text for segment in strip).rstrip() for strip in strips]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    async def press(self, *keys: str) -> str:
        await self.pilot.press(*keys)
        await self.pilot.pause()
        return self.text

    async def until(self, shown: Callable[[str], bool]) -> None:
        deadline = time.monotonic() + 60
        while not shown(self.text):
            assert time.monotonic() < deadline, self.text
            await self.pilot.pause(0.05)


def test_an_error_of_a_view_ends_it_and_is_handed_on() -> None:
    async def scene(seen: Seen) -> None:
        vars(seen)["what"] = None
        await seen.pilot.pause(0.7)

    assert isinstance(Seen(view()).play(scene), AttributeError)


def test_costs_that_are_not_known_are_shown_as_such() -> None:
    ends = datetime(2026, 11, 29, tzinfo=timezone.utc)
    unknown = cluster(dollars_per_hour=None, dollars_so_far=None, worst_case_dollars=None, ends=ends)
    assert "?/h, ? so far, at worst ?" in head(view(cluster=unknown, dollars_so_far=None)).plain


def test_no_name_reason_or_line_acts_on_the_screen() -> None:
    evil = "[/foo] [link=https://evil.example]x \x1b]52;c;cm0=\x07\x1b[2J\x9b2J\u202e\u2028\x7f"
    members = [Member.from_json({"name": "digits-1", "alias": evil, "state": evil, "why": evil})]
    hostile = view(
        cluster=cluster(name=evil),
        notice=evil,
        run=replace(run(run=evil, members=members), reason=evil, numbers={evil: 1.0}),
        nodes=[node(0, trouble=evil, sample={}), node(1, state=evil)],
        log=[evil],
    )

    async def scene(seen: Seen) -> None:
        assert all(char.isprintable() for line in seen.lines for char in line)
        assert seen.text.count("[/foo] [link=https://evil.example]x \\x1b]52") >= 8

    Seen(hostile).play(scene, size=(250, 40))
