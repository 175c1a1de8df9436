"""A terminal that exists in memory."""

from __future__ import annotations

import io

import pyte
import pytest


class Screen(io.StringIO):
    """A file that is a terminal: what is written to it is drawn, and can be read as a person reads it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, columns: int = 80, rows: int = 24, colour: bool = True):
        super().__init__()
        for name, value in {"COLUMNS": str(columns), "LINES": str(rows), "TERM": "xterm-256color"}.items():
            monkeypatch.setenv(name, value)
        for name in ("FORCE_COLOR", "COLORTERM", "NO_COLOR"):
            monkeypatch.delenv(name, raising=False)
        if not colour:
            monkeypatch.setenv("NO_COLOR", "1")
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.Stream(self._screen)

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        # What the terminal's driver does with each newline.
        self._stream.feed(text.replace("\n", "\r\n"))
        return super().write(text)

    @property
    def text(self) -> str:
        """The lines, without those that are empty at the end."""
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip("\n")

    @property
    def coloured(self) -> str:
        """The same with its colours: `{green ✓}`."""
        lines = []
        for number in range(self._screen.lines):
            line, colour = "", "default"
            for column in range(self._screen.columns):
                cell = self._screen.buffer[number][column]
                if cell.fg != colour:
                    line += ("" if colour == "default" else "}") + ("" if cell.fg == "default" else f"{{{cell.fg} ")
                    colour = cell.fg
                line += cell.data
            lines.append((line + ("" if colour == "default" else "}")).rstrip())
        return "\n".join(lines).rstrip("\n")
