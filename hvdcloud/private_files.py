"""Which files of a project hold credentials: they stay on the laptop unless a line of .dockerignore names them.

By name, as the tools that write them have it; private keys and Google's credentials may have any name and are known by
their content.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Collection
from functools import cache
from pathlib import Path

from hvdcloud.errors import UsageError
from hvdcloud.units import some

_NAMES = frozenset(
    (
        *(".boto", ".dockercfg", ".git-credentials", ".htpasswd", ".my.cnf", ".netrc", ".npmrc", ".pgpass", ".pypirc"),
        *(".s3cfg", ".terraformrc", ".vault-token", "_netrc", "application_default_credentials.json"),
        *("credentials.tfrc.json", "kaggle.json", "kubeconfig"),
    )
)
_FOLDERS = frozenset((".aws", ".azure", ".gnupg", ".kube", ".oci", ".ssh"))
_TAILS = (
    *((".config", "gcloud"), (".config", "gh"), (".config", "rclone"), (".docker", "config.json")),
    *((".huggingface", "token"), ("huggingface", "token"), ("huggingface", "stored_tokens")),
    (".streamlit", "secrets.toml"),
)
"""Folders and files by the end of their path."""
_PATTERN = re.compile(
    r"\.env(rc|[._-].*)?|.*\.env"  # what dotenv and direnv read
    r"|id_(rsa|dsa|ecdsa|ed25519)(_sk)?|.*\.(p12|pfx|jks|keystore|ppk)"
)
_NO_SECRET = re.compile(r".*\.(example|sample|template|dist)|.*\.(example|sample|template|dist)\.env")
_READ_SUFFIXES = frozenset(("", ".json", ".key", ".p8", ".pem", ".pk8", ".priv"))
_READ_BYTES = 1 << 16
"""Larger files are not looked into: keys are small."""
_KEY = re.compile(rb"^-----BEGIN ([A-Z0-9]+ )*PRIVATE KEY( BLOCK)?-----", re.MULTILINE)
_GOOGLE_TYPE = re.compile(rb'"type"\s*:\s*"(service_account|authorized_user)"')
_GOOGLE_SECRET = re.compile(rb'"(private_key|refresh_token)"\s*:')


def private_part(path: str, file: Path) -> str | None:
    """The part of a path that makes a file private: `a/.ssh` of `a/.ssh/config`, or all of it; None: it is not.

    Args:
        path: relative to the project's folder.
        file: the file itself, which is read where its name says nothing. Raises OSError: it cannot be.
    """
    folders = (path[: slash.start()] for slash in re.finditer("/", path))
    if (private := next(filter(_is_private, folders), None)) is not None:
        return private
    return path if _is_private(path) or _holds_key(file) else None


@cache
def _is_private(path: str) -> bool:
    names = path.casefold().split("/")
    name = names[-1]
    if name in _NAMES or name in _FOLDERS or any(tuple(names[-len(tail) :]) == tail for tail in _TAILS):
        return True
    return _PATTERN.fullmatch(name) is not None and _NO_SECRET.fullmatch(name) is None


def _holds_key(file: Path) -> bool:
    if file.suffix.lower() not in _READ_SUFFIXES:
        return False
    status = file.lstat()
    if not stat.S_ISREG(status.st_mode) or not 0 < status.st_size <= _READ_BYTES:
        return False
    content = file.read_bytes()
    if _KEY.search(content):
        return True
    return _GOOGLE_TYPE.search(content) is not None and _GOOGLE_SECRET.search(content) is not None


def refuse_private(path: str, file: Path, *, key: str) -> None:
    """Raise UsageError if a file that `key` of hvdcloud.yaml names, directly or not, holds credentials."""
    if private_part(path, file) is not None:
        message = f"{file} holds credentials, and {key} would send it to the image's build"
        raise UsageError(message, hint=f"name another file in {key}")


def left_out(paths: Collection[str]) -> str:
    """A sentence for the user about private files that are not sent."""
    names = sorted(paths)
    named = some(names, most=5)
    return f"not sent, since it looks like credentials: {named}; a line !{names[0]} in .dockerignore sends it"
