"""Reads literals from Go source: as much of the language as the schemas of Terraform providers are written in.

A value becomes: a string, a number or a boolean; `Name` for an identifier; `Call` for a function call; `Literal` for a
composite literal; None for anything else, such as a function or a sum.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)
      | (?P<raw>`[^`]*`)
      | (?P<string>"(?:\\.|[^"\\\n])*")
      | (?P<rune>'(?:\\.|[^'\\\n])+')
      | (?P<number>[0-9][0-9a-fA-FxX_.]*)
      | (?P<name>[A-Za-z_]\w*)
      | (?P<mark>.)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_CLOSER = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True, slots=True)
class Name:
    """An identifier: `schema.TypeString`."""

    name: str


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function: `schema.DefaultTimeout(…)`."""

    name: str
    arguments: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Literal:
    """A composite literal: `[]string{"a"}`, `&schema.Schema{Type: schema.TypeString}`.

    Attributes:
        name: the type's text, "" where an element's type is left out.
        items: (key, value); the key is None in a list.
    """

    name: str
    items: tuple[tuple[Value, Value], ...]

    def get(self, key: str) -> Value:
        """A field's value; None without it."""
        return next((value for name, value in self.items if name in (key, Name(key))), None)

    @property
    def values(self) -> tuple[Value, ...]:
        return tuple(value for _, value in self.items)


Value = str | float | bool | Name | Call | Literal | None


class Source:
    """The functions and variables that some files define.

    Args:
        texts: the content of the files.
    """

    def __init__(self, texts: Iterator[str]) -> None:
        self._text = "\n".join(texts)

    def returned(self, function: str) -> Value:
        """What a function's first `return` at its outermost level gives back."""
        return self._after(rf"^func {function}\([^\n]*\{{\n(?:.*?\n)??\treturn ")

    def variable(self, name: str) -> Value:
        """The value that a variable of the package begins with."""
        return self._after(rf"^var {name} = ")

    def _after(self, pattern: str) -> Value:
        match = re.search(pattern, self._text, re.MULTILINE | re.DOTALL)
        if match is None:
            raise LookupError(f"nothing matches {pattern}")
        return _Parser(self._text, match.end()).value()


class _Parser:
    def __init__(self, text: str, start: int) -> None:
        self._tokens = (
            (str(match.lastgroup), match[0]) for match in _TOKEN.finditer(text, start) if match.lastgroup != "space"
        )
        self._next = next(self._tokens)

    def value(self) -> Value:
        """One expression, up to a comma, a colon, a closing bracket."""
        value = self._operand()
        if isinstance(value, Literal) or self._next[1] in (",", ":", ")", "]", "}"):
            return value
        # A sum, a conversion: nothing that a schema's rules are read from.
        self._skip()
        return None

    def _take(self) -> tuple[str, str]:
        taken, self._next = self._next, next(self._tokens, ("end", ""))
        return taken

    def _operand(self) -> Value:
        kind, text = self._next
        if kind == "string":
            self._take()
            return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), text[1:-1])
        if kind == "raw":
            self._take()
            return text[1:-1]
        if kind == "number":
            self._take()
            return float(text) if "." in text else int(text, 0)
        if text in ("&", "*"):
            self._take()
            return self._operand()
        if text == "{":
            return self._literal("")
        if text == "[" or text == "map":
            name = self._type()
            return self._literal(name) if self._next[1] == "{" else None
        if kind == "name" and text != "func":
            return self._named()
        return None

    def _named(self) -> Value:
        name = self._dotted()
        if name in ("true", "false"):
            return name == "true"
        if self._next[1] == "(":
            return Call(name, tuple(self._arguments()))
        if self._next[1] == "{":
            return self._literal(name)
        return Name(name)

    def _dotted(self) -> str:
        name = self._take()[1]
        while self._next[1] == ".":
            self._take()
            name += f".{self._take()[1]}"
        return name

    def _type(self) -> str:
        """`[]string`, `map[string]*schema.Schema`."""
        text = ""
        while self._next[1] != "{" and self._next[1] not in (",", ")", ""):
            text += self._take()[1]
        return text

    def _arguments(self) -> Iterator[Value]:
        self._take()
        while self._next[1] != ")":
            yield self.value()
            if self._next[1] == ",":
                self._take()
        self._take()

    def _literal(self, name: str) -> Literal:
        self._take()
        items: list[tuple[Value, Value]] = []
        while self._next[1] != "}":
            key: Value = None
            value = self.value()
            if self._next[1] == ":":
                self._take()
                key, value = value, self.value()
            items.append((key, value))
            if self._next[1] == ",":
                self._take()
        self._take()
        return Literal(name, tuple(items))

    def _skip(self) -> None:
        """To the end of an expression, over everything in brackets."""
        open_brackets: list[str] = []
        while self._next[0] != "end":
            text = self._next[1]
            if self._next[0] == "mark":
                if open_brackets and text == open_brackets[-1]:
                    open_brackets.pop()
                elif text in _CLOSER:
                    open_brackets.append(_CLOSER[text])
                elif not open_brackets and text in (",", ":", ")", "]", "}"):
                    return
            self._take()
