"""Who may ask: a service account whose key the emulator made itself.

The key's file (`Keys.credentials`) is what GOOGLE_APPLICATION_CREDENTIALS names. Its owner gets an access token from
POST /token (RFC 7523) or signs a JWT for the API itself, as Google's library does for a service account
(https://google.aip.dev/auth/4111).
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import parse_qs

from tests.standins.compute.errors import ApiError
from tests.standins.google_account import AUDIENCE, JWT_BEARER, key_document, public_key

SCOPES = frozenset(
    f"https://www.googleapis.com/auth/{name}" for name in ("cloud-platform", "compute", "compute.readonly")
)
OWN_AUDIENCE = "https://compute.googleapis.com/"
TOKEN_SECONDS = 3600.0


class Keys:
    """Issues and recognises tokens.

    Args:
        project: of the service account.
    """

    def __init__(self, *, project: str) -> None:
        self.email = f"tester@{project}.iam.gserviceaccount.com"
        self._project = project
        self._lock = threading.Lock()
        self._tokens: dict[str, tuple[str, float]] = {}
        self._narrow: set[str] = set()

    def credentials(self, url: str) -> dict[str, str]:
        """The service account's key, as Google's console hands it out."""
        return key_document(project=self._project, email=self.email, token_uri=f"{url}/token")

    def issue(self, email: str, *, scopes: Collection[str] = SCOPES) -> tuple[str, float]:
        """An access token, and the seconds it's valid.

        Args:
            scopes: of a VM's service account; without one of SCOPES, it is good for other services alone.
        """
        token = f"ya29.{secrets.token_urlsafe(32)}"
        with self._lock:
            self._tokens[token] = (email, time.time() + TOKEN_SECONDS)
            if SCOPES.isdisjoint(scopes):
                self._narrow.add(token)
        return token, TOKEN_SECONDS

    def exchange(self, body: bytes, *, token_uri: str) -> dict[str, Any]:
        """POST /token.

        Raises:
            TokenError: the answer to a bad request.
        """
        form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        if form.get("grant_type") != JWT_BEARER:
            raise TokenError("unsupported_grant_type", f"Invalid grant_type: {form.get('grant_type', '')}")
        claims = self._claims(form.get("assertion", ""))
        if claims is None or claims.get("aud") not in (token_uri, AUDIENCE):
            raise TokenError("invalid_grant", "Invalid JWT Signature.")
        if not SCOPES & set(str(claims.get("scope", "")).split()):
            raise TokenError("invalid_scope", "Invalid OAuth scope or ID token audience provided.")
        token, seconds = self.issue(self.email)
        return {"access_token": token, "expires_in": int(seconds), "token_type": "Bearer"}

    def check(self, header: str | None) -> str:
        """The e-mail address of a caller of Compute Engine's.

        Raises:
            ApiError: 401; 403 for a token without a scope for it.
        """
        email = self.owner(header)
        if (header or "").partition(" ")[2] in self._narrow:
            info = {
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": "ACCESS_TOKEN_SCOPE_INSUFFICIENT",
                "domain": "googleapis.com",
                "metadata": {"service": "compute.googleapis.com"},
            }
            message = "Request had insufficient authentication scopes."
            raise ApiError(403, "insufficientPermissions", message, details=[info])
        return email

    def owner(self, header: str | None) -> str:
        """The e-mail address of whom a token is.

        Raises:
            ApiError: 401.
        """
        kind, _, token = (header or "").partition(" ")
        if kind != "Bearer" or not token:
            raise _unauthenticated("Login Required.", "required")
        with self._lock:
            email, until = self._tokens.get(token, ("", 0.0))
        if until > time.time():
            return email
        claims = self._claims(token) if token.count(".") == 2 else None
        if claims is None or not (
            SCOPES & set(str(claims.get("scope", "")).split()) or str(claims.get("aud", "")).startswith(OWN_AUDIENCE)
        ):
            raise _unauthenticated("Invalid Credentials", "authError")
        with self._lock:
            self._tokens[token] = (self.email, float(claims["exp"]))
        return self.email

    def _claims(self, token: str) -> Mapping[str, Any] | None:
        """What a JWT says; None if it isn't signed by the key, or isn't valid now."""
        from google.auth import exceptions, jwt

        try:
            claims: Mapping[str, Any] = jwt.decode(token, certs=public_key())
        except (ValueError, exceptions.GoogleAuthError):
            return None
        valid = claims.get("iss") == self.email and claims["exp"] - claims["iat"] <= 3600
        return claims if valid else None


class TokenError(Exception):
    """An error of the token endpoint (RFC 6749, 5.2)."""

    def __init__(self, code: str, description: str) -> None:
        super().__init__(f"{code}: {description}")
        self.document = {"error": code, "error_description": description}


def _unauthenticated(message: str, reason: str) -> ApiError:
    return ApiError(401, reason, message, headers={"WWW-Authenticate": 'Bearer realm="https://accounts.google.com/"'})
