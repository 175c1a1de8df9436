"""`hvdcloud top` as its user drives it: keys, wheel, size of the terminal. Textual's pilot has no terminal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from textual.pilot import Pilot

from hvdcloud.cli.top_app import TopApp
from hvdcloud.lifecycle.top import View
from hvdcloud.runs.state import Member
from tests.support.views import RUN, many_nodes, node, view

Scene = Callable[["Seen"], Awaitable[None]]


class Seen:
    """The app with a view that a test changes, and its screen as text."""

    def __init__(self, what: View, *, blocks: bool = True) -> None:
        self.what = what
        self.stopped: list[str] = []
        self.app = TopApp(observe=lambda: self.what, stop=self._stop, blocks=blocks)
        self.pilot: Pilot[Exception]

    def _stop(self, run: str) -> str:
        self.stopped.append(run)
        return f"run {run} has ended"

    def play(self, scene: Scene, *, size: tuple[int, int] = (80, 24)) -> Exception | None:
        async def run() -> None:
            async with self.app.run_test(size=size) as self.pilot:
                await self.pilot.pause()
                await scene(self)

        asyncio.run(run())
        return self.app.return_value

    @property
    def lines(self) -> list[str]:
        """What is on the screen, the question above it included."""
        strips = self.app.screen._compositor.render_strips(self.app.size)
        lines = ["".join(segment.text for segment in strip) for strip in strips]
        assert (len(lines[0]), len(lines)) == tuple(self.app.size)
        return [line.rstrip() for line in lines]

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


def names(text: str) -> list[str]:
    """The nodes that are on the screen."""
    return [line.split()[0] for line in text.splitlines() if line.startswith("digits-")]


def without_scrollbar(text: str) -> list[str]:
    return [line[:79].rstrip() for line in text.splitlines()]


EVERY_NODE = [f"digits-{index}" for index in range(64)]


def test_sixty_four_nodes_are_reached_by_keys_on_twenty_four_lines() -> None:
    async def scene(seen: Seen) -> None:
        assert names(seen.text)[0] == "digits-0"
        assert names(await seen.press("end"))[-1] == "digits-63"
        assert names(await seen.press("home"))[0] == "digits-0"
        found = set(names(seen.text))
        while names(seen.text)[-1] != "digits-63":
            before = set(found)
            found.update(names(await seen.press("pagedown")))
            assert found > before
        assert found == set(EVERY_NODE)
        assert "digits-63" not in names(await seen.press("pageup"))
        await seen.press("end")
        before_up = without_scrollbar(seen.text)
        after_up = without_scrollbar(await seen.press("up"))
        assert after_up[6:14] == before_up[5:13]
        assert without_scrollbar(await seen.press("down")) == before_up
        # What does not scroll stays.
        assert after_up[:5] == before_up[:5]
        assert "q quits" in after_up[-1]

    Seen(many_nodes(64)).play(scene)


def test_the_wheel_scrolls_nodes_and_log() -> None:
    async def scene(seen: Seen) -> None:
        from textual.events import MouseScrollDown, MouseScrollUp

        async def wheel(event: type[Any], y: int, times: int) -> None:
            for _ in range(times):
                position = {"x": 10, "y": y, "delta_x": 0, "delta_y": 0, "button": 0, "screen_x": 10, "screen_y": y}
                seen.app.post_message(event(widget=None, shift=False, meta=False, ctrl=False, style=None, **position))
            await seen.pilot.pause()

        # Scrolling takes a moment, however many events have been handled.
        await wheel(MouseScrollDown, 8, 100)
        await seen.until(lambda text: names(text)[-1] == "digits-63")
        await wheel(MouseScrollUp, 8, 100)
        await seen.until(lambda text: names(text)[0] == "digits-0")
        assert "[0] epoch 199/60" in seen.text
        await wheel(MouseScrollUp, 21, 1)
        await seen.until(lambda text: "[0] epoch 199/60" not in text)
        log = [line for line in seen.lines if line.startswith("[0]")]
        # Where it is scrolled back it stays, whatever is printed; at its end it follows.
        seen.what = view(nodes=seen.what.nodes, log=[*seen.what.log, "[0] epoch 200/60: loss 0.5"])
        await seen.pilot.pause(0.7)
        assert [line for line in seen.lines if line.startswith("[0]")] == log
        await wheel(MouseScrollDown, 21, 10)
        await seen.until(lambda text: "[0] epoch 200/60" in text)
        seen.what = view(nodes=seen.what.nodes, log=[*seen.what.log, "[0] epoch 201/60: loss 0.5"])
        await seen.until(lambda text: "[0] epoch 201/60" in text)

    Seen(many_nodes(64)).play(scene)


def test_it_is_drawn_in_its_place_while_it_is_scrolled() -> None:
    async def scene(seen: Seen) -> None:
        await seen.press("end")
        later = [replace(each, sample={**each.sample, "memory": 31e9}) for each in seen.what.nodes]
        seen.what = replace(seen.what, nodes=later)
        await seen.until(lambda text: "31.0/63.0 GB" in text)
        assert names(seen.text)[-1] == "digits-63"
        # Fewer nodes than before: none of them is out of reach, and nothing of the others is left.
        seen.what = replace(seen.what, nodes=later[:3])
        await seen.until(lambda text: names(text) == EVERY_NODE[:3])

    Seen(many_nodes(64)).play(scene)


def test_it_takes_the_size_of_the_terminal() -> None:
    async def scene(seen: Seen) -> None:
        few = len(names(seen.text))
        await seen.pilot.resize_terminal(140, 45)
        await seen.pilot.pause()
        assert "STATE" in seen.lines[4]
        assert len(names(seen.text)) > few
        assert "[0] epoch 199/60" in seen.lines[43]
        assert "q quits" in seen.lines[44]
        await seen.pilot.resize_terminal(60, 18)
        await seen.pilot.pause()
        assert names(seen.text)
        assert "[0] epoch 199/60" in seen.lines[16]
        assert "q quits" in seen.lines[17]

    Seen(many_nodes(64)).play(scene)


def test_every_gpu_is_reached() -> None:
    async def scene(seen: Seen) -> None:
        assert "8 GPUs" in seen.text
        assert "g each GPU" in seen.lines[-1]
        assert "GPU 0" in await seen.press("g")
        assert "g GPUs together" in seen.lines[-1]
        assert "GPU 7" in await seen.press("end")
        assert names(seen.text)[-1] == "digits-63"
        assert "8 GPUs" in await seen.press("g")

    Seen(many_nodes(64, gpus=8)).play(scene)


def test_long_names_no_gpus_and_a_lost_node() -> None:
    name = "the-whole-name-of-a-cluster-that-is-long-63"
    nodes = [node(0, gpus=0, name=name), node(1, gpus=0, state="gone"), node(2, gpus=0, silent=9.0)]

    async def scene(seen: Seen) -> None:
        assert "is-long-63 " in seen.text
        assert "digits-1         gone" in seen.text
        assert "digits-2         silent   no answer for 9 s" in seen.text
        assert "NOT WHOLE" in seen.lines[0]
        assert "GPU" not in seen.text
        await seen.pilot.resize_terminal(140, 45)
        await seen.pilot.pause()
        assert f"{name} running" in seen.text
        seen.what = replace(seen.what, gone=True, whole=False)
        await seen.until(lambda text: "digits  GONE" in text)

    Seen(view(nodes=nodes, whole=False)).play(scene)


def test_the_log_is_hidden_and_shown() -> None:
    async def scene(seen: Seen) -> None:
        assert "l hides the log" in seen.lines[-1]
        assert "LOG" not in await seen.press("l")
        assert "l shows the log" in seen.lines[-1]
        assert "LOG" in await seen.press("L")
        assert "[0] epoch 199/60" in seen.text

    Seen(view()).play(scene)


@pytest.mark.parametrize("answer", ["n", "q", "escape", "enter", "l"])
def test_every_answer_but_yes_leaves_the_run_alone(answer: str) -> None:
    async def scene(seen: Seen) -> None:
        await seen.press("s")
        assert seen.lines[-1] == f"stop run {RUN.run}? Its checkpoints are kept. y/n"
        assert "digits-0" in seen.text
        await seen.press(answer)
        assert "s stops the run" in seen.lines[-1]
        assert "l hides the log" in seen.lines[-1]
        assert seen.stopped == []

    Seen(view()).play(scene)


def test_yes_stops_the_run_and_says_what_has_become_of_it_until_the_next_key() -> None:
    async def scene(seen: Seen) -> None:
        await seen.press("s", "y")
        await seen.until(lambda text: f"run {RUN.run} has ended" in text)
        assert seen.stopped == [RUN.run]
        seen.what = replace(seen.what, run=replace(RUN, state="stopped"))
        await seen.until(lambda text: "s stops the run" not in text)
        assert "has ended" not in await seen.press("up")
        assert "there is no run to stop" in await seen.press("s")
        assert seen.stopped == [RUN.run]

    Seen(view()).play(scene)


@pytest.mark.parametrize("key", ["q", "Q", "ctrl+c", "ctrl+d"])
def test_keys_quit(key: str) -> None:
    seen = Seen(view())

    async def scene(seen: Seen) -> None:
        await seen.pilot.press(key)
        assert not seen.app.is_running

    assert seen.play(scene) is None
    assert seen.app.return_code == 0


def test_an_error_of_a_view_ends_it_and_is_handed_on() -> None:
    async def scene(seen: Seen) -> None:
        vars(seen)["what"] = None
        await seen.pilot.pause(0.7)

    assert isinstance(Seen(view()).play(scene), AttributeError)


def test_without_block_characters_there_are_none() -> None:
    async def scene(seen: Seen) -> None:
        assert seen.text.isascii() or set(seen.text) - set("°…") <= set(map(chr, range(128)))
        await seen.press("end")
        assert names(seen.text)[-1] == "digits-63"

    Seen(many_nodes(64), blocks=False).play(scene)


def test_no_name_reason_or_line_acts_on_the_screen() -> None:
    evil = "[/foo] [link=https://evil.example]x \x1b]52;c;cm0=\x07\x1b[2J\x9b2J\u202e\u2028\x7f"
    calm = view()
    assert calm.run is not None
    member = Member.from_json({"name": "digits-1", "alias": evil, "state": evil, "why": evil})
    hostile = replace(
        calm,
        name=evil,
        notice=evil,
        run=replace(calm.run, run=evil, reason=evil, state="running"),
        nodes=[replace(calm.nodes[0], trouble=evil, sample={}), replace(calm.nodes[1], state=evil, member=member)],
        events=[(1.0, evil)],
        log=[evil],
    )

    async def scene(seen: Seen) -> None:
        for _ in range(2):
            assert all(char.isprintable() for line in seen.lines for char in line)
            assert seen.text.count("[/foo] [link=https://evil.example]x \\x1b]52") >= 5
            await seen.press("s")

    Seen(hostile).play(scene, size=(250, 40))
