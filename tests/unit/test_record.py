"""The pictures of terminals: what tools/record.py makes of what a command wrote."""

from __future__ import annotations

import itertools
import re
from xml.etree import ElementTree

import pytest

from tools import record
from tools.record import Recording

SVG = "{http://www.w3.org/2000/svg}"


def recorded(*chunks: tuple[float, str], command: str = "make tea") -> Recording:
    return Recording(command=command, columns=40, rows=10, chunks=[(at, text.encode()) for at, text in chunks])


def lines_of(screen: record.Screen) -> list[str]:
    """The text of the lines that are not empty."""
    return [text for line in screen if (text := "".join(run.text for run in line).rstrip())]


def test_the_picture_is_well_formed_and_has_the_text() -> None:
    root = ElementTree.fromstring(record.svg(recorded((0.5, '1 < 2 & "three"\r\n'), (1.0, "\033[31mhot\033[0m\r\n"))))
    texts = {text.text: text for text in root.iter(f"{SVG}text")}
    assert {"make tea", '1 < 2 & "three"', "hot"} <= set(texts)
    assert texts["hot"].get("fill") == record.COLOURS["red"]


def test_one_recording_makes_one_picture() -> None:
    recording = recorded((0.5, "one\r\n"), (1.0, "two\r\n"))
    assert record.svg(recording) == record.svg(recording)


def test_the_picture_needs_nothing_else() -> None:
    picture = record.svg(recorded((0.5, "https://example.com/\r\n")))
    root = ElementTree.fromstring(picture)
    assert {element.tag.removeprefix(SVG) for element in root.iter()} == {"svg", "style", "rect", "circle", "text", "g"}
    assert not re.search(r"url\(|@import|href", picture)


def test_where_nothing_moves_the_last_screen_is_shown() -> None:
    root = ElementTree.fromstring(record.svg(recorded((0.5, "first"), (1.0, "\r\033[Ksecond\r\n"))))
    window = next(each for each in root.iter(f"{SVG}svg") if each.get("y") == str(record.LINE_HEIGHT))
    strip = window.find(f"{SVG}g")
    assert strip is not None
    moved = re.fullmatch(r"translate\(0 -(\d+)\)", strip.get("transform", ""))
    assert moved
    top = int(moved[1])
    window_of_one_line = range(top, top + record.LINE_HEIGHT)
    assert [text.text for text in strip.iter(f"{SVG}text") if int(text.get("y", "0")) in window_of_one_line] == [
        "second"
    ]


def test_the_command_is_typed_before_anything_happens() -> None:
    shown = [lines_of(screen) for _, screen in record.screens(recorded((0.0, "tea\r\n")))]
    assert shown[0] == ["$"]
    assert shown[1:9] == [[f"$ {'make tea'[:end]}".rstrip()] for end in range(1, 9)]
    assert shown[-1] == ["$ make tea", "tea", "$"]


def test_a_wait_in_which_only_a_clock_moves_is_shortened() -> None:
    ticks = [(0.1 * tick, f"\r⠋ waiting {tick} s") for tick in range(200)]
    shown = record.screens(recorded(*ticks, (20.0, "\r\nready\r\n")))
    assert shown[-1][0] < 5.0
    assert len(shown) < 40
    assert lines_of(shown[-1][1])[1:] == ["⠋ waiting 199 s", "ready", "$"]


def test_what_really_changes_keeps_its_pace() -> None:
    shown = record.screens(recorded(*((0.5 * number, "x" * number + "\r\n") for number in range(1, 9))))
    first = {text: at for at, screen in reversed(shown) for text in lines_of(screen)}
    assert first["x" * 8] - first["x"] == pytest.approx(3.5, abs=0.15)


def test_there_are_no_more_than_ten_screens_a_second() -> None:
    chunks = [(0.001 * number, f"{'x' * (number % 30 + 1)}\r\n") for number in range(2000)]
    times = [at for at, _ in record.screens(recorded(*chunks))]
    assert all(later - earlier > 0.099 for earlier, later in itertools.pairwise(times))
