"""Sets keys in a YAML file that a person wrote: nothing but those keys changes.

The parser says where each value is, and only that part of the text is replaced. A library that reads the whole
file and writes it again (ruamel.yaml's round trip) keeps comments, but not quotes, indentation, `null` and where a line
was wrapped: a file under version control would show changes that were not made.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hvdcloud.config.yaml_text import Null, read
from hvdcloud.errors import UsageError

Value = str | int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One key that got another value; `old` is None where it was not there, or null."""

    key: str
    old: Any
    new: Value


def edit_file(path: Path, values: Mapping[str, Value]) -> Sequence[Change]:
    """Set keys (dotted key → value) in a file. It is replaced in one move, or left alone if all have these values.

    Raises UsageError: the file does not exist, cannot be written, or says these things in a way that cannot be edited.
    """
    path = path.resolve()  # A link stays one: what it points to is replaced.
    try:
        text = path.read_bytes().decode("utf-8")
        new, changes = set_keys(text, values, name=str(path))
        if changes:
            _replace(path, new.encode("utf-8"))
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8: {error}", hint=f"fix {path}") from None
    except OSError as error:
        raise UsageError(
            f"{path} cannot be changed: {error.strerror or error}", hint=_by_hand(values), details=_lines(values)
        ) from error
    return changes


def set_keys(text: str, values: Mapping[str, Value], *, name: str = "the file") -> tuple[str, Sequence[Change]]:
    """The text with other values, and which keys changed.

    An existing key gets its value in place. One that is a comment (`# bucket: gs://BUCKET`) becomes a key. Else it goes
    behind the last one of its section, and a missing section to the end of the text.

    Raises UsageError: it is not a YAML mapping, or cannot be edited (an alias in the place of a key).
    """
    tree = _load(text, name)
    changes = []
    for dotted, value in values.items():
        key, new = tuple(dotted.split(".")), read(_scalar(value))
        old: Any = tree
        for part in key:
            old = old.get(part) if isinstance(old, Mapping) else None
        if old == new:
            continue
        text = _Text(text, values, name).with_key(key, value)
        put(tree, key, new)
        # A way of writing YAML that was not thought of here must not cost the user a key.
        if not _says(text, tree):
            raise _not_editable(values, name, f"{dotted} belongs to an anchor, or is written in a way not known here")
        changes.append(Change(key=dotted, old=None if isinstance(old, Null) else old, new=value))
    return text, changes


class _Text:
    """A text, and the positions of its keys."""

    def __init__(self, text: str, values: Mapping[str, Value], name: str) -> None:
        self._text = text
        self._values = values
        self._name = name
        self._newline = "\r\n" if "\r\n" in text else "\n"

    def with_key(self, key: tuple[str, ...], value: Value) -> str:
        root = yaml.compose(self._text, Loader=yaml.SafeLoader)
        if root is None:
            return self._appended(self._block(key, value, indent=""))
        node: yaml.Node = root
        begin = 0
        for depth, part in enumerate(key):
            assert isinstance(node, yaml.MappingNode)
            pair = next((pair for pair in node.value if pair[0].value == part), None)
            if pair is None:
                return self._inserted(node, key[depth:], value, begin=begin)
            name, child = pair
            if child.start_mark.index < name.end_mark.index or self._between(name, child).strip(" \t") not in (":", ""):
                self._refuse_alias(name, child)
            if depth == len(key) - 1:
                return self._replaced(name, child, value, flow=bool(node.flow_style))
            if not isinstance(child, yaml.MappingNode) or not (child.value or node.flow_style):
                return self._section_filled(name, child, key[depth + 1 :], value, flow=bool(node.flow_style))
            node, begin = child, name.end_mark.index
        raise AssertionError("unreachable")

    # --- an existing key -------------------------------------------------------------------------------------------

    def _replaced(self, name: yaml.Node, node: yaml.Node, value: Value, *, flow: bool) -> str:
        start, end = node.start_mark.index, node.end_mark.index
        if not isinstance(node, yaml.ScalarNode) or node.style in ("|", ">"):
            raise _not_editable(self._values, self._name, f"{name.value} is not a single word there")
        new = _scalar(value, flow=flow, quoted=node.style == '"' and flow)
        if start == end:  # `key:` and nothing: the place is right behind the colon.
            start = end = name.end_mark.index + self._text[name.end_mark.index :].index(":") + 1
            new = f" {new}"
        return self._spliced(start, end, new)

    def _spliced(self, start: int, end: int, new: str) -> str:
        """A comment behind it stays in its column, if there is room."""
        tail = self._text[end:]
        if comment := re.match(r"[ \t]{2,}(?=#)", tail):
            room = len(comment.group()) - (len(new) - (end - start))
            tail = " " * max(room, 2) + tail[comment.end() :]
        return self._text[:start] + new + tail

    # --- an empty section ----------------------------------------------------------------------------------------

    def _section_filled(
        self, name: yaml.Node, node: yaml.Node, rest: tuple[str, ...], value: Value, *, flow: bool
    ) -> str:
        """`gce:`, `gce: null` and `gce: {}` become a block with the key in it."""
        empty = isinstance(node, yaml.MappingNode) or (
            isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"
        )
        if flow or not empty:
            raise _not_editable(self._values, self._name, f"{name.value} is not a block with keys there")
        colon = name.end_mark.index + self._text[name.end_mark.index :].index(":") + 1
        bare = self._text[:colon] + self._text[max(colon, node.end_mark.index) :]
        line_end = _line_end(bare, colon)
        indent = " " * name.start_mark.column + "  "
        return self._line_inserted(bare, line_end, self._block(rest, value, indent=indent))

    # --- a key that is not there ------------------------------------------------------------------------------------

    def _inserted(self, section: yaml.MappingNode, rest: tuple[str, ...], value: Value, *, begin: int) -> str:
        """`begin`: behind the section's name; 0: it is the whole file."""
        if section.flow_style:
            return self._inserted_in_flow(section, rest, value)
        column = section.value[0][0].start_mark.column
        indent = " " * column
        end = _line_end(self._text, self._content_end(section))
        line = self._commented(rest[0], column, begin=begin, section=section) if len(rest) == 1 else None
        if line is not None:
            start, stop, tail = line
            return self._text[:start] + f"{indent}{rest[0]}: {_scalar(value)}" + tail + self._text[stop:]
        if not begin and len(rest) == 1:
            # `provider` belongs to the name, not behind the last section.
            first = section.value[0][1]
            if isinstance(first, yaml.ScalarNode):
                end = _line_end(self._text, self._content_end(first))
        elif not begin:
            return self._appended(self._newline + self._block(rest, value, indent=indent))
        return self._line_inserted(self._text, end, self._block(rest, value, indent=indent))

    def _commented(
        self, key: str, column: int, *, begin: int, section: yaml.MappingNode
    ) -> tuple[int, int, str] | None:
        """The line that has this key as a comment, with a single word for a value: start, end, the comment behind it.

        It is sought in the section's own lines and in the comments that follow at the same indentation.
        """
        pattern = re.compile(rf"[ ]{{{column}}}#[ ]?{re.escape(key)}:[ \t]+[^\s#]\S*(?P<tail>[ \t]+#[^\r\n]*)?[ \t]*")
        position, last = begin, self._content_end(section)
        while position < len(self._text):
            stop = _line_end(self._text, position)
            line = self._text[position:stop]
            if position > last and line.strip() and not re.match(rf"[ ]{{{column},}}#", line):
                return None  # The next section.
            if match := pattern.fullmatch(line):
                return position, stop, match.group("tail") or ""
            position = stop + len(self._newline)
        return None

    def _inserted_in_flow(self, section: yaml.MappingNode, rest: tuple[str, ...], value: Value) -> str:
        quoted = bool(section.value) and section.value[0][0].style == '"'
        words = _scalar(value, flow=True, quoted=quoted)
        for part in reversed(rest[1:]):
            words = f"{{{_scalar(part, flow=True, quoted=quoted)}: {words}}}"
        words = f"{_scalar(rest[0], flow=True, quoted=quoted)}: {words}"
        if not section.value:
            start, end = section.start_mark.index, section.end_mark.index
            return self._text[:start] + "{" + words + "}" + self._text[end:]
        name, last = section.value[-1]
        if last.start_mark.index < name.end_mark.index:
            self._refuse_alias(name, last)
        # The new key begins as the last one does: on a line of its own, or behind a blank.
        before = self._text[: name.start_mark.index]
        gap = before[len(before.rstrip()) :] if before.rstrip()[-1:] in "{," else " "
        if len(section.value) == 1 and not gap.strip(" "):
            gap = " "
        end = last.end_mark.index
        return self._text[:end] + "," + gap + words + self._text[end:]

    # --- pieces -----------------------------------------------------------------------------------------------------

    def _block(self, rest: tuple[str, ...], value: Value, *, indent: str) -> str:
        """`a:` and below it `b: VALUE`, each on a line of its own."""
        lines = [f"{indent}{'  ' * depth}{part}:" for depth, part in enumerate(rest)]
        lines[-1] += f" {_scalar(value)}"
        return self._newline.join(lines) + self._newline

    def _appended(self, block: str) -> str:
        text = self._text
        return (text if not text or text.endswith("\n") else text + self._newline) + block

    def _line_inserted(self, text: str, line_end: int, block: str) -> str:
        """`block` below the line that ends there."""
        if line_end >= len(text):
            return text + self._newline + block
        start = line_end + len(self._newline)
        return text[:start] + block + text[start:]

    def _between(self, name: yaml.Node, node: yaml.Node) -> str:
        """What is between a key and its value, without line breaks and comments."""
        return re.sub(r"#[^\r\n]*|[\r\n]", "", self._text[name.end_mark.index : node.start_mark.index])

    def _content_end(self, node: yaml.Node) -> int:
        """Where a node's last word ends: a block's own mark is behind the blank lines and comments that follow it."""
        while isinstance(node, (yaml.MappingNode, yaml.SequenceNode)) and node.value and not node.flow_style:
            last = node.value[-1]
            name, value = last if isinstance(last, tuple) else (last, last)
            if value.end_mark.index < name.end_mark.index:  # An alias: its node is elsewhere.
                return int(name.end_mark.index)
            node = value
        end = int(node.end_mark.index)
        if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">"):
            return len(self._text[:end].rstrip())
        return end

    def _refuse_alias(self, name: yaml.Node, node: yaml.Node) -> None:
        between = self._between(name, node)
        if node.start_mark.index < name.end_mark.index or "*" in between or "&" in between:
            raise _not_editable(self._values, self._name, f"{name.value} is an alias or has an anchor there")


def _line_end(text: str, position: int) -> int:
    """The position of the next line break, or the end of the text."""
    found = re.compile(r"\r?\n").search(text, position)
    return found.start() if found else len(text)


def _scalar(value: Value, *, flow: bool = False, quoted: bool = False) -> str:
    """A value as YAML: plain where that reads back as the same, else in double quotes."""
    if not isinstance(value, str):
        return json.dumps(value)
    plain = re.fullmatch(r"[A-Za-z0-9][-A-Za-z0-9_./:@+= ]*", value) is not None and not value.endswith(":")
    if not quoted and plain:
        # Another program that reads the file must not take it for a number either.
        word: Any = yaml.compose(f"[{value}]" if flow else value, Loader=yaml.SafeLoader)
        word = word.value[0] if flow else word
        if (word.tag, word.value) == ("tag:yaml.org,2002:str", value):
            return value
    return json.dumps(value, ensure_ascii=False)


def _load(text: str, name: str) -> dict[str, Any]:
    try:
        tree = read(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{name} is not YAML: {' '.join(str(error).split())}", hint=f"fix {name}") from None
    if tree is not None and not isinstance(tree, dict):
        raise UsageError(f"{name} holds no mapping of keys", hint="hvdcloud init writes one to start from")
    return tree or {}


def _says(text: str, tree: Mapping[str, Any]) -> bool:
    try:
        return bool(read(text) == tree)
    except yaml.YAMLError:
        return False


def put(tree: dict[str, Any], key: tuple[str, ...], value: object) -> None:
    """Set a nested key; sections that are missing, or no mappings, become new ones."""
    for part in key[:-1]:
        child = tree.get(part)
        # A copy: what an alias shares with another key must not change there.
        tree[part] = dict(child) if isinstance(child, dict) else {}
        tree = tree[part]
    tree[key[-1]] = value


def _not_editable(values: Mapping[str, Value], name: str, why: str) -> UsageError:
    return UsageError(f"{name} is left as it is: {why}", hint=_by_hand(values), details=_lines(values))


def _by_hand(values: Mapping[str, Value]) -> str:
    return f"set the {len(values)} keys above in it by hand" if len(values) > 1 else "set the key above in it by hand"


def _lines(values: Mapping[str, Value]) -> str:
    return "\n".join(f"{key}: {_scalar(value)}" for key, value in values.items())


def _replace(path: Path, data: bytes) -> None:
    """In one move, with the same mode: a reader sees the old file or the new one, also after a power failure."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(path.stat().st_mode & 0o7777)
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
