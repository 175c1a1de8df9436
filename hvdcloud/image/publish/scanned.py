"""The software bill of materials (SBOM) of an image by a scanner on this machine: packages of its system as well.

The same image gives the same bytes, as without a scanner: another push adds nothing to the registry. So what a scanner
makes up for each document, or takes from the names that the image has on this engine, is replaced or left out.
"""

from __future__ import annotations

import contextlib
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hvdcloud import engine
from hvdcloud.errors import ImageError
from hvdcloud.image.publish import sbom
from hvdcloud.image.publish.scan import Inventory, inventory

_MADE_UP = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NAME_HERE = re.compile(r":(Repo|Reference)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scanned:
    """What a scanner found in an image of the engine, and the image's own time, UTC."""

    image_id: str
    created: datetime
    inventory: Inventory

    @property
    def packages(self) -> Sequence[Mapping[str, Any]]:
        """The components that are packages: not files, nor the system as a whole."""
        return [each for each in self.inventory.document["components"] if each["type"] == "library"]


def contents(reference: str) -> Scanned | None:
    """Asks the first scanner on PATH what is in an image; None: there is none.

    Raises:
        NodeError, CredentialsError: the engine, see `engine.connect`.
        ImageError: the scanner failed; `details` has its last lines.
    """
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    if (found := inventory(reference)) is None:
        return None
    with contextlib.closing(engine.connect()) as client:
        try:
            image = client.images.get(reference).attrs
        except (DockerException, RequestException) as error:
            message = f"the engine does not say when {reference} was made: {error}"
            raise ImageError(message, hint=f"docker image inspect {reference}") from error
    return Scanned(image_id=str(image["Id"]), created=sbom.created_at(image), inventory=found)


def document(found: Scanned, *, name: str, digest: str | None = None) -> bytes:
    """The SBOM: JSON of the version of CycloneDX that the scanner writes.

    Args:
        name: the image's, without tag or digest: `HOST/PATH` if it is at a registry.
        digest: at that registry; None if it is not pushed.
    """
    content: dict[str, Any] = _renamed(found.inventory.document, _new_refs(found))
    del content["serialNumber"]
    # Grype's, which change while the image does not.
    content.pop("vulnerabilities", None)
    content["metadata"]["timestamp"] = found.created.isoformat()
    image = content["metadata"]["component"]
    properties = [each for each in image.get("properties", []) if not _NAME_HERE.search(each["name"])]
    properties.append({"name": "hvdcloud:image-id", "value": found.image_id})
    image |= {"name": name, "version": digest or found.image_id, "properties": properties}
    image.pop("purl", None)
    if url := sbom.image_url(name, digest):
        image["purl"] = url.to_string()
    content["components"].sort(key=lambda each: str(each["bom-ref"]))
    for each in content.get("dependencies", []):
        each["dependsOn"] = sorted(each.get("dependsOn", []))
    content.get("dependencies", []).sort(key=lambda each: str(each["ref"]))
    text = json.dumps(content, indent=2, sort_keys=True)
    content["serialNumber"] = uuid.uuid5(uuid.NAMESPACE_URL, text).urn
    return json.dumps(content, indent=2, sort_keys=True).encode() + b"\n"


def _new_refs(found: Scanned) -> dict[str, str]:
    """References for those that differ from scan to scan: the image's, and what has no package URL (Trivy)."""
    content = found.inventory.document
    made_up = [each for each in content["components"] if _MADE_UP.fullmatch(each["bom-ref"])]
    made_up.sort(key=lambda each: json.dumps({**each, "bom-ref": ""}, sort_keys=True))
    refs = {each["bom-ref"]: f"component-{number}" for number, each in enumerate(made_up)}
    return {**refs, content["metadata"]["component"]["bom-ref"]: "image"}


def _renamed(value: Any, refs: Mapping[str, str]) -> Any:
    """A copy in which some strings are others."""
    if isinstance(value, dict):
        return {key: _renamed(each, refs) for key, each in value.items()}
    if isinstance(value, list):
        return [_renamed(each, refs) for each in value]
    return refs.get(value, value) if isinstance(value, str) else value
