"""A Google service account for tests: a key file, and a server that exchanges its signed requests for access tokens."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from tests.support.http_server import Asked, Reply, answering

EMAIL = "laptop@lab.iam.gserviceaccount.com"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
STORAGE_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
AUDIENCE = "https://oauth2.googleapis.com/token"
"""What google-auth signs for, wherever the token server is."""
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"


class Account:
    """The account and what was asked of it.

    Args:
        tokens: handed out one after the other, the last one again and again; none left: the account is refused.
    """

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.issued: list[str] = []
        self.url = ""

    def answer(self, body: bytes) -> tuple[int, dict[str, Any]]:
        """To a request as in RFC 7523: a token for a JWT that the account's own key has signed."""
        from google.auth import jwt

        fields = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        if fields.get("grant_type") != JWT_BEARER:
            return 400, {"error": "unsupported_grant_type"}
        claims = jwt.decode(fields["assertion"], certs=public_key(), audience=AUDIENCE)
        if claims["iss"] != EMAIL or claims["scope"] not in (SCOPE, STORAGE_SCOPE) or not self.tokens:
            return 400, {"error": "invalid_grant", "error_description": "Invalid grant: account not found"}
        token = self.tokens.pop(0) if len(self.tokens) > 1 else self.tokens[0]
        self.issued.append(token)
        return 200, {"access_token": token, "expires_in": 3599, "token_type": "Bearer"}

    def write(self, path: Path) -> None:
        """The key file that GOOGLE_APPLICATION_CREDENTIALS is to name."""
        path.write_text(json.dumps(key_document(project="lab", email=EMAIL, token_uri=self.url)))


@contextmanager
def service_account(*tokens: str) -> Iterator[Account]:
    """An account whose token server runs during the block."""
    account = Account(list(tokens))

    def answer(asked: Asked) -> Reply:
        status, content = account.answer(asked.body)
        return Reply(content, status=status)

    with answering(answer) as url:
        account.url = f"{url}/token"
        yield account


def key_document(*, project: str, email: str, token_uri: str) -> dict[str, str]:
    """A service account's key, as Google's console hands it out."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return {
        "type": "service_account",
        "project_id": project,
        "private_key_id": "1",
        "private_key": _key().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
        "client_email": email,
        "client_id": "100000000000000000001",
        "token_uri": token_uri,
        "universe_domain": "googleapis.com",
    }


def public_key() -> bytes:
    """What `key_document` signs can be checked with, PEM."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public: bytes = _key().public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return public


@functools.cache
def _key() -> Any:
    """The key pair, one for the process. It is short, because each client checks its primes."""
    from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key

    return generate_private_key(public_exponent=65537, key_size=1024)
