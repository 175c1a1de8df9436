"""The software bill of materials (SBOM) of an image without a scanner: its Python packages, in CycloneDX's JSON.

The same image gives the same bytes: the time is the image's own, the serial number is made from its identity.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hvdcloud
from hvdcloud import engine
from hvdcloud.errors import ImageError

if TYPE_CHECKING:
    from cyclonedx.model.component import Component
    from cyclonedx.model.license import License
    from packageurl import PackageURL
    from packaging.metadata import RawMetadata

MEDIA_TYPE = "application/vnd.cyclonedx+json"
"""Registered with IANA."""
# Reading a CUDA image's disk for the first time after a boot.
_SILENCE_SECONDS = 600
_EPOCH = "1970-01-01T00:00:00"
_LONGEST_LICENSE_NAME = 100
_CLASSIFIER = "License :: "
_UNKNOWN = ("", "unknown", "other/proprietary license", "osi approved")


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One version of a Python distribution, wherever it is installed.

    Attributes:
        version: None if its metadata says none.
        licenses: as its metadata has them: an SPDX expression, a name, or the names of trove classifiers.
        places: paths of its metadata in the image.
    """

    name: str
    version: str | None
    licenses: tuple[str, ...]
    places: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What is in an image of the engine: its own time, UTC, and its packages, sorted by name and version."""

    image_id: str
    created: datetime
    packages: tuple[Package, ...]


def contents(reference: str) -> Contents:
    """Asks an image which Python packages are on its disk.

    A container without network, rights or a writable disk walks through it; nothing of the packages' code is run.

    Raises:
        NodeError, CredentialsError: the engine, see `engine.connect`.
        ImageError: there is no such image, or its Python can't do it; `details` has what it said.
    """
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    with contextlib.closing(engine.connect(timeout=_SILENCE_SECONDS)) as client:
        api: Any = client.api  # Not all of docker-py's methods have types.
        try:
            image = api.inspect_image(reference)
            output, errors = _run(api, image["Id"])
        except (DockerException, RequestException) as error:
            said = getattr(error, "explanation", None) or error
            message = f"the Python packages of {reference} can't be listed: {said}"
            raise ImageError(message, hint="docker info shows whether the engine is healthy; then try again") from error
    try:
        headers: Mapping[str, str] = json.loads(output)
    except ValueError:
        raise ImageError(
            f"the Python packages of {reference} can't be listed: its Python failed",
            hint=f"docker run --rm --entrypoint sh {reference} -c 'command -v python3 python' shows what it has",
            details=errors.decode(errors="replace").strip(),
        ) from None
    return Contents(image_id=str(image["Id"]), created=created_at(image), packages=tuple(packages_of(headers)))


def created_at(image: Mapping[str, Any]) -> datetime:
    """When an image was made, by what the engine says of it."""
    return datetime.fromisoformat((image.get("Created") or _EPOCH)[: len(_EPOCH)]).replace(tzinfo=timezone.utc)


def _run(api: Any, image_id: str) -> tuple[bytes, bytes]:
    """What the listing prints, and its complaints."""
    from docker.errors import APIError

    program = (Path(__file__).parent / "packages.py").read_text(encoding="utf-8")
    container = api.create_container(
        image_id,
        entrypoint=["sh", "-c"],
        command=['exec "$(command -v python3 || command -v python || echo python3)" -I -S -c "$0" /', program],
        user="0",
        network_disabled=True,
        host_config=api.create_host_config(
            # Gone with its process, even if we are killed.
            auto_remove=True,
            network_mode="none",
            read_only=True,
            cap_drop=["ALL"],
            # Files that only their owner may read are part of the image as well.
            cap_add=["DAC_READ_SEARCH"],
            security_opt=["no-new-privileges"],
            log_config={"Type": "none"},
        ),
    )["Id"]
    try:
        # Before it starts: nothing else keeps what it prints.
        items = api.attach(container, stdout=True, stderr=True, stream=True, demux=True)
        api.start(container)
        output, errors = bytearray(), bytearray()
        for out, err in items:
            output += out or b""
            errors += err or b""
        return bytes(output), bytes(errors)
    finally:
        # Most often it is gone already, or about to be.
        with contextlib.suppress(APIError):
            api.remove_container(container, force=True, v=True)


def packages_of(headers: Mapping[str, str]) -> Iterator[Package]:
    """The packages that metadata files describe; those of one name and version are one package.

    Args:
        headers: the fields of each file, by its path
            (https://packaging.python.org/en/latest/specifications/core-metadata/).
    """
    from packaging.metadata import parse_email
    from packaging.utils import canonicalize_name

    found: dict[tuple[str, str], Package] = {}
    for place in sorted(headers):
        fields, _ = parse_email(headers[place])
        name = (fields.get("name") or _stem(place)).strip()
        version = fields.get("version", "").strip() or None
        key = canonicalize_name(name), version or ""
        before = found.get(key) or Package(name=name, version=version, licenses=(), places=())
        licenses = before.licenses or _licenses(fields)
        found[key] = replace(before, version=version, licenses=licenses, places=(*before.places, place))
    yield from (found[key] for key in sorted(found))


def _stem(place: str) -> str:
    """The name in `…/name-1.0.dist-info/METADATA`, for metadata that has none."""
    info = next(part for part in reversed(place.split("/")) if part.endswith((".dist-info", ".egg-info")))
    return info.rpartition(".")[0].partition("-")[0]


def _licenses(fields: RawMetadata) -> tuple[str, ...]:
    """What the metadata says of the licence, the most exact first found."""
    if expression := fields.get("license_expression", "").split():
        return (" ".join(expression),)
    # Some put the licence's whole text there.
    named = fields.get("license", "").strip()
    if "\n" not in named and len(named) <= _LONGEST_LICENSE_NAME and named.lower() not in _UNKNOWN:
        return (named,)
    classifiers = (text for text in fields.get("classifiers", []) if text.startswith(_CLASSIFIER))
    classified = {text.split(" :: ")[-1].strip() for text in classifiers}
    return tuple(sorted(text for text in classified if text.lower() not in _UNKNOWN))


def document(found: Contents, *, name: str, digest: str | None = None) -> bytes:
    """The SBOM: CycloneDX 1.6, JSON (https://cyclonedx.org/docs/1.6/json/).

    Args:
        name: the image's, without tag or digest: `HOST/PATH` if it is at a registry.
        digest: at that registry; None if it is not pushed.
    """
    from cyclonedx.model import Property
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.model.tool import ToolRepository
    from cyclonedx.output import make_outputter
    from cyclonedx.schema import OutputFormat, SchemaVersion

    image = Component(
        type=ComponentType.CONTAINER,
        name=name,
        version=digest or found.image_id,
        bom_ref="image",
        purl=image_url(name, digest),
        properties=[Property(name="hvdcloud:image-id", value=found.image_id)],
    )
    tool = Component(type=ComponentType.APPLICATION, name="hvdcloud", version=hvdcloud.__version__)
    bom = Bom(
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"{hvdcloud.__version__} {found.image_id} {name} {digest}"),
        metadata=BomMetaData(timestamp=found.created, component=image, tools=ToolRepository(components=[tool])),
        components=_components(found.packages),
    )
    bom.register_dependency(image, bom.components)
    text: str = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=2)
    return text.encode() + b"\n"


def image_url(name: str, digest: str | None) -> PackageURL | None:
    """Where an image is: `pkg:oci/…`; None if it is not pushed."""
    from packageurl import PackageURL

    place = {"repository_url": name}
    return PackageURL("oci", name=name.rpartition("/")[2], version=digest, qualifiers=place) if digest else None


def _components(packages: Iterable[Package]) -> Iterator[Component]:
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.model.component_evidence import ComponentEvidence, Occurrence
    from packageurl import PackageURL
    from packaging.utils import canonicalize_name

    for package in packages:
        purl = PackageURL("pypi", name=canonicalize_name(package.name), version=package.version)
        yield Component(
            type=ComponentType.LIBRARY,
            name=package.name,
            version=package.version,
            bom_ref=purl.to_string(),
            purl=purl,
            licenses=_license_choice(package.licenses),
            # The library sorts them by their reference first, and one that it makes up is another one every time.
            evidence=ComponentEvidence(occurrences=[Occurrence(bom_ref=at, location=at) for at in package.places]),
        )


def _license_choice(licenses: tuple[str, ...]) -> list[License]:
    """As CycloneDX wants it: one expression, or any number of ids and names."""
    from cyclonedx.contrib.license.factories import LicenseFactory

    make = LicenseFactory()
    if len(licenses) == 1:
        return [make.make_from_string(licenses[0])]
    return [make.make_with_name(name) for name in licenses]
