"""What Google answers, without what tells whose project it was."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

_EMAIL = re.compile(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+")
_IPV4 = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])")
_IPV6 = re.compile(r"(?<![0-9A-Za-z:])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?![0-9A-Za-z:])")
_MAC = re.compile(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", re.IGNORECASE)
_UUID = re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.IGNORECASE)
_OPERATION = re.compile(r"\b(?:systemevent|operation)-\d{10,}[0-9a-f-]*\b")
_NUMBER = re.compile(r"(?<![\d.])\d{11,20}(?![\d.])")
_KEY = re.compile(r"\b((?:ssh|ecdsa)-[a-z0-9-]+) [A-Za-z0-9+/=]{40,}(?: [^\s\"\\]+)?")
_FINGERPRINT = re.compile(r"\bSHA256:[A-Za-z0-9+/]{43}=?")
_TOKEN = re.compile(r"\bya29\.[A-Za-z0-9._-]+|\beyJ[A-Za-z0-9_-]{10,}(?:\.[A-Za-z0-9_-]+){1,2}")
_SAME_FOR_ALL = ("127.", "0.0.0.0", "169.254.169.254", "255.")
_HASHES = frozenset({"fingerprint", "labelFingerprint", "etag", "md5Hash"})


class Anonymizer:
    """Replaces what is one's own by placeholders; the same thing always by the same, in all texts.

    Args:
        names: of the project and the cluster, wherever they are, also inside of words: name → what replaces it.
        words: of the user and this machine, likewise, but as words only: `root` may be a user.
    """

    def __init__(self, names: Mapping[str, str], words: Mapping[str, str]) -> None:
        # A longer one may contain a shorter one.
        self._words = [(re.escape(name), names[name]) for name in sorted(names, key=len, reverse=True)]
        for word in sorted(filter(None, words), key=len, reverse=True):
            self._words.append((rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])", words[word]))
        self._known: dict[str, dict[str, str]] = {}

    def text(self, text: str) -> str:
        """The text with placeholders."""
        patterns: list[tuple[re.Pattern[str], Callable[[re.Match[str]], str]]] = [
            (_TOKEN, lambda _: "TOKEN"),
            (_KEY, lambda found: f"{found[1]} {self._as('key', found[0], 'KEY-{}')}"),
            (_FINGERPRINT, lambda found: self._as("hash", found[0], "SHA256:HASH-{}")),
            (_EMAIL, self._email),
            (_UUID, lambda found: self._as("uuid", found[0], "00000000-0000-4000-8000-{:012}")),
            (_OPERATION, lambda found: self._as("operation", found[0], "operation-{}")),
            (_MAC, lambda found: self._as("mac", found[0], "42:01:0a:00:00:{:02x}")),
            (_IPV4, self._address),
            (_IPV6, self._address),
        ]
        for pattern, replace in patterns:
            text = pattern.sub(replace, text)
        for word, instead in self._words:
            text = re.sub(word, instead, text)
        return _NUMBER.sub(lambda found: self._as("number", found[0], "1{:018}"), text)

    def document(self, content: Any) -> str:
        """A JSON document as text, with placeholders."""
        return self.text(json.dumps(_without_hashes(content), indent=1, sort_keys=True, ensure_ascii=False) + "\n")

    def _as(self, kind: str, found: str, form: str) -> str:
        known = self._known.setdefault(kind, {})
        return known.setdefault(found, form.format(len(known) + 1))

    def _email(self, found: re.Match[str]) -> str:
        local, _, domain = found[0].partition("@")
        # hvdcloud's and Google's own service accounts stay, but for the project in them.
        google = domain.endswith(".gserviceaccount.com") and (
            not domain.endswith(".iam.gserviceaccount.com") or "gcp-sa" in domain
        )
        if google or (local.startswith("hvdcloud") and domain.endswith(".iam.gserviceaccount.com")):
            return found[0]
        return self._as("email", found[0], "user-{}@example.com")

    def _address(self, found: re.Match[str]) -> str:
        if found[0].startswith(_SAME_FOR_ALL):
            return found[0]
        try:
            address = ipaddress.ip_address(found[0])
        except ValueError:
            return found[0]
        if address.version == 6:
            return found[0] if found[0] in ("::", "::1") else self._as("ipv6", found[0], "2001:db8::{:x}")
        return self._as(
            "inside" if address.is_private else "outside",
            found[0],
            "10.0.0.{}" if address.is_private else "203.0.113.{}",
        )


def _without_hashes(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: "HASH" if key in _HASHES else _without_hashes(value) for key, value in content.items()}
    if isinstance(content, list):
        return [_without_hashes(each) for each in content]
    return content
