"""Buckets and objects as the API shows them."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from tests.standins.storage.http import Request
from tests.standins.storage.store import Bucket, Version, timestamp


def bucket_resource(bucket: Bucket) -> dict[str, Any]:
    return {
        "kind": "storage#bucket",
        "id": bucket.name,
        "name": bucket.name,
        "projectNumber": "1",
        "metageneration": "1",
        "location": "US",
        "locationType": "multi-region",
        "storageClass": "STANDARD",
        "timeCreated": timestamp(bucket.created),
        "updated": timestamp(bucket.created),
        "etag": "CAE=",
    }


def object_resource(request: Request, bucket: str, version: Version) -> dict[str, Any]:
    address = f"http://{request.headers.get('Host')}"
    path = f"/storage/v1/b/{bucket}/o/{quote(version.name, safe='')}"
    value: dict[str, Any] = {
        "kind": "storage#object",
        "id": f"{bucket}/{version.name}/{version.generation}",
        "selfLink": address + path,
        "mediaLink": f"{address}/download{path}?generation={version.generation}&alt=media",
        "name": version.name,
        "bucket": bucket,
        "generation": str(version.generation),
        "metageneration": str(version.metageneration),
        "size": str(version.size),
        "crc32c": version.crc32c,
        "etag": f"{version.generation}/{version.metageneration}",
        "storageClass": "STANDARD",
        "timeCreated": timestamp(version.created),
        "updated": timestamp(version.updated),
        **version.properties,
    }
    if version.md5 is not None:
        value["md5Hash"] = version.md5
    return value
