"""The proof that a node may use its bucket, made before it is ready: it writes one object, finds and reads it, and
replaces it.

These are the rights that a run needs: checkpoints are added, listed and read, and the records of runs are replaced.
"""

from __future__ import annotations

import os
from typing import Any

from hvdcloud.errors import CredentialsError, HvdcloudError
from hvdcloud.node import machine
from hvdcloud.node.bucket import open_bucket_here
from hvdcloud.storage.base import ObjectMissingError

BUCKET_VARIABLE, ENDPOINT_VARIABLE = "HVDCLOUD_BUCKET", "HVDCLOUD_STORAGE_ENDPOINT"
SETTLED_VARIABLE = "HVDCLOUD_SETTLED_AT"
"""Until then, in seconds since 1970, what is refused is tried again: rights that are granted may not hold yet."""


def object_name(node: str) -> str:
    """The object of a node's proof; nodes may replace it, as the records of runs."""
    return f".hvdcloud/proof-{node}"


def main() -> dict[str, Any]:
    """The answer of the verb: `ok`, or the `error`, and which of create, read and replace was `refused`."""
    url = os.environ[BUCKET_VARIABLE]
    step, name = "create", object_name(machine.name())
    try:
        bucket = open_bucket_here(url, endpoint=os.environ.get(ENDPOINT_VARIABLE) or None)
        bucket.write(name, b"1")
        step = "read"
        bucket.read(next(each.name for each in bucket.list(name)))
        step = "replace"
        bucket.write(name, b"2")
    except CredentialsError as error:
        return {"error": error.message, "refused": step}
    except ObjectMissingError:
        return {"error": f"the bucket {url} does not exist"}
    except HvdcloudError as error:
        return {"error": error.message}
    return {"ok": True}
