"""Text from elsewhere as a terminal may have it: what would act on the terminal becomes text that is seen.

A job, a node, a bucket and the answers of a service may hold any bytes. An escape sequence among them could write the
clipboard, rename the window or clear what was said before; a bidirectional override turns a command around; a line
separator begins a line that looks like one of ours. `visible` writes each of these as Python would: `\\x1b`, `\\u202e`.
Only `hvdcloud.console`, `hvdcloud.steps` and the screen of `top` print, and all of them print through it.
"""

from __future__ import annotations

import codecs
import re

LONGEST_WORDS = 500
"""Characters of another's words in a sentence of ours."""
# Controls but newline and tab; C1; what is not seen (soft hyphen, zero width, tags, fillers) or changes the direction;
# separators of lines; surrogates.
_UNSEEN = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_ACTS = re.compile(f"[{_UNSEEN}]+")
_ACTS_IN_A_CELL = re.compile(f"[{_UNSEEN}\t\n]+")
# A colour (SGR), and the end of the line deleted, as many programs send with one: neither leaves its line. 64: more
# parameters than two colours of 24 bits and all attributes have.
_COLOUR = r"\x1b\[[0-9;:]{0,64}m|\x1b\[[02]?K"
_COLOURS = re.compile(_COLOUR)
_DRAWN_OVER = "\b\r"
# Returns stay within their line, too: progress bars are drawn with them.
_ACTS_IN_A_JOB = re.compile(f"(?:(?!{_COLOUR}|\r)[{_UNSEEN}])+")
_UNFINISHED = re.compile(r"\x1b(?:\[[0-9;:]{0,64})?\Z")
_MOST_UNFINISHED = 66
_MOVES = re.compile(r"(\n|\r|\x1b\[2K)")
# What every line of a log begins with, and may begin with again once it has returned to its beginning.
_PREFIX = re.compile(r"\[(?:\d{1,6}|launcher|hvdcloud)\] ")
_RANK = re.compile(r"\[\d{1,6}\] ")
_MAY_BEGIN = re.compile(r"\[(?:\d{0,6}|[a-z]{0,8})\]?")


def visible(text: str, *, lines: bool = True) -> str:
    """The text with every character that would act on a terminal as text that is seen; twice is the same as once.

    Args:
        lines: newlines and tabs stay; without it they become text as well.
    """
    # Nearly all text passes here, in a few nanoseconds a character.
    if text.isprintable():
        return text
    return (_ACTS if lines else _ACTS_IN_A_CELL).sub(_as_text, text)


def words(text: object, *, most: int = LONGEST_WORDS) -> str:
    """Another's words for a sentence of ours: in one line, and not longer than that."""
    said = " ".join(str(text)[: 4 * most].split())
    return said if len(said) <= most else f"{said[:most]}…"


def says(who: str, text: object) -> str:
    """`node digits-1 says: …`: a sentence that is not ours, and does not look as if it were."""
    return f"{who} says: {words(text)}"


def log_of(who: str, text: str) -> str:
    """Several lines that another wrote, under a line that says who; empty if there are none."""
    return f"{who} says:\n{text[-2000:]}" if text else ""


def as_left(line: str) -> str:
    """A line as it is left on a terminal, without colours: of what was drawn over itself, the last.

    The prefix `[RANK] ` stays, which is only in front of what was drawn first.
    """
    prefix, bracket, rest = line.partition("] ")
    if bracket:
        line = f"{prefix}] {rest.rstrip(_DRAWN_OVER).rpartition(chr(13))[2]}"
    return _COLOURS.sub("", line).replace("\b", "")


class JobText:
    """What a job prints, for a terminal: colours and returns stay, backspaces go, all else that would act becomes text.

    Nothing takes the prefix from in front of it: it is shown again after a return, and a line that has none gets
    `[?] `.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._held = ""
        """The beginning of what may become a colour, or a prefix."""
        self._prefix = ""  # Of the line; empty at its beginning.
        self._begun = False  # Whether the prefix is shown, and what follows is the job's.

    def feed(self, data: bytes) -> str:
        """The next piece, wherever it is cut."""
        text = self._held + self._decoder.decode(data).replace("\b", "")
        self._held = ""
        if unfinished := _UNFINISHED.search(text, max(0, len(text) - _MOST_UNFINISHED)):
            self._held, text = text[unfinished.start() :], text[: unfinished.start()]
        *parts, last = _MOVES.split(_ACTS_IN_A_JOB.sub(_as_text, text))
        shown = "".join(map(self._part, parts))
        if not self._begun and _MAY_BEGIN.fullmatch(last):
            self._held, last = last + self._held, ""
        return shown + self._part(last)

    def leave(self) -> str:
        """What ends the line that is begun, if one is, before something else is shown; the job goes on in the next."""
        self._begun = False
        return "\n" if self._prefix else ""

    def _part(self, part: str) -> str:
        if part == "\n":
            self._prefix, self._begun = "", False
        elif part in ("\r", "\x1b[2K"):
            self._begun = False
            return "\r" if part == "\r" else "\r\x1b[K"
        elif part and not self._begun:
            self._begun = True
            found = (_RANK if self._prefix else _PREFIX).match(part)
            self._prefix = found[0] if found else self._prefix or "[?] "
            return self._prefix + part.removeprefix(self._prefix)
        return part


def _as_text(found: re.Match[str]) -> str:
    """Characters as Python writes them."""
    codes = map(ord, found[0])
    return "".join(f"\\x{c:02x}" if c < 0x100 else f"\\u{c:04x}" if c < 0x10000 else f"\\U{c:08x}" for c in codes)
