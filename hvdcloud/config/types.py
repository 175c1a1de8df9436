"""The types of keys of hvdcloud.yaml that more than one section may have, each with what it takes and its own error."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Annotated, get_args
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic.fields import FieldInfo

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smhd])+")
_GCS = re.compile(r"gs://([a-z0-9][-_.a-z0-9]{1,220}[a-z0-9])((?:/[^/\x00-\x1f\x7f]+)*)/?")
_NUMBER = re.compile(r"[-+]?\d[\d_]{0,17}(?:\.\d*)?")


def parse_duration(value: object) -> object:
    """Seconds from `90`, `60s`, `1h30m` or `0.5s`. Raises ValueError: other text; other types are left to pydantic."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if _NUMBER.fullmatch(text):
        return float(text)
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{value!r} is not a duration; write 60s, 30m, 12h or 1h30m")
    return sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+(?:\.\d+)?)([smhd])", text))


def duration_text(seconds: float) -> str:
    """A duration as hvdcloud.yaml has it: `90s`, `30m`, `12h`."""
    for unit in ("d", "h", "m"):
        if seconds >= 2 * _UNITS[unit] and seconds % _UNITS[unit] == 0:
            return f"{seconds / _UNITS[unit]:g}{unit}"
    return f"{seconds:g}s"


def written_as(pattern: str, what: str) -> AfterValidator:
    """Refuses a text that does not match all of a pattern: `'1x' is not a cluster name: …`."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"{text!r} is not {what}")
        return text

    return AfterValidator(check)


def _storage_url(url: str) -> str:
    if url.startswith("file://"):
        return _folder_url(url)
    if not _GCS.fullmatch(url) or any(part in (".", "..") for part in url.split("/")):
        raise ValueError(f"{url!r} is neither gs://BUCKET[/PREFIX] nor file:///DIR")
    return url.rstrip("/")


def _folder_url(url: str) -> str:
    """A file:///DIR without links on its way: what is checked is what is mounted. Raises ValueError: it is none."""
    if not re.fullmatch(r"file:///[^?#\x00-\x1f\x7f]+", url):
        raise ValueError(f"{url!r} needs an absolute folder: file:///DIR")
    folder = Path(unquote(urlsplit(url).path))
    if ".." in folder.parts:
        raise ValueError(f"{url!r} has '..' in it; write the folder that it leads to")
    real = Path(os.path.realpath(folder))
    if real == Path("/"):
        raise ValueError(f"{url!r} needs an absolute folder: file:///DIR")
    return url.rstrip("/") if real == folder else real.as_uri()


def _shell_words(command: str) -> str:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ValueError(f"{command!r} cannot be split into words: {error}") from error
    if not words:
        raise ValueError("the command is empty")
    return command


def _env_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        # Without what was written: where a name belongs, a value may have been.
        raise ValueError("write the name of an environment variable: letters, digits and _, no digit first")
    return name


Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    Field(gt=0),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": f"^{_DURATION.pattern}$"}, {"type": "number"}]}),
]


def is_duration(field: FieldInfo) -> bool:
    """Whether a key's value is seconds that are written as a duration."""
    return Duration in get_args(field.annotation) or BeforeValidator(parse_duration) in field.metadata


class HostPath:
    """Marks a key that may name a file or folder of this machine: trust.py says which ones hvdcloud.yaml may name."""


def is_host_path(field: FieldInfo) -> bool:
    """Whether a key's value may name a file or folder of this machine."""
    marks = (mark for part in get_args(field.annotation) for mark in getattr(part, "__metadata__", ()))
    return HostPath in (*field.metadata, *marks)


# Compute Engine takes 63 characters; 40 leave room for what is made of the name (NAME-NNN, firewall rules).
ClusterName = Annotated[
    str,
    written_as(
        r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?",
        "a cluster name: at most 40 characters a-z, 0-9 and '-', a letter first, no '-' last",
    ),
]
StorageUrl = Annotated[str, AfterValidator(_storage_url), HostPath]
ProjectPath = Annotated[str, Field(min_length=1), HostPath]
EnvName = Annotated[str, AfterValidator(_env_name)]
Command = Annotated[str, AfterValidator(_shell_words)]
Text = Annotated[str, Field(min_length=1)]
