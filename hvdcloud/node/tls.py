"""TLS towards servers that are not the cluster's."""

from __future__ import annotations

import contextlib
import ssl


def tls_context() -> ssl.SSLContext:
    """Verifies certificates and names."""
    context = ssl.create_default_context()
    # A custom image may have no CA certificates; the bucket's client brings some.
    with contextlib.suppress(ImportError, OSError):
        import certifi

        context.load_verify_locations(certifi.where())
    return context
