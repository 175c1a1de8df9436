"""What OCI's image specification names: types of documents, digests and descriptors of them.

See https://github.com/opencontainers/image-spec/blob/v1.1.1/media-types.md and descriptor.md beside it.
"""

from __future__ import annotations

import hashlib
from typing import Any

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar"
"""Of a layer that is not compressed."""


def digest_of(content: bytes) -> str:
    """`sha256:…`."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def descriptor(content: bytes, media_type: str) -> dict[str, Any]:
    """How another document names this one."""
    return {"mediaType": media_type, "digest": digest_of(content), "size": len(content)}
