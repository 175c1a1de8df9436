"""What depends on the engine's age: containerd's image store, and layers packed with zstd."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import requests

from hvdcloud import engine as engines
from hvdcloud.errors import ImageError
from hvdcloud.image.build import buildkit, published
from hvdcloud.image.engine_reports import ignore, inspected
from hvdcloud.image.publish.transfer import push
from tests.standins.registry import running_registry
from tests.support.modern_engine import ModernEngine, modern_engine
from tests.support.small_image import NAME, small

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

DOCKERFILE = "FROM scratch\nCOPY files/ /opt/{}/\n"
MANIFESTS = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"


@pytest.fixture(scope="module")
def modern() -> Iterator[ModernEngine]:
    with modern_engine() as found:
        yield found


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory, modern: ModernEngine) -> Iterator[str]:
    """As this machine and the engine reach it."""
    gateway = modern.engine.gateway
    with running_registry(tmp_path_factory.mktemp("registry"), {}, addresses=(gateway,)) as host:
        yield f"{gateway}:{host.rpartition(':')[2]}"


@pytest.fixture
def api(modern: ModernEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Its client, docker-py's; what is under test uses that engine too."""
    modern.use(monkeypatch)
    with contextlib.closing(engines.connect()) as client:
        yield client.api


def built(api: Any, content: str, *, zstd: bool) -> str:
    """The reference of a new image whose layer no other content has."""
    builder = buildkit.find(api)
    assert builder.packs_zstd(api)
    step = small(dockerfile=DOCKERFILE.format(content), reference=f"{NAME}:{content}")
    builder.build(step, zstd=zstd, progress=ignore)
    return step.reference


def packings(registry: str, reference: str) -> set[str]:
    """What an image's layers are packed with, once it has been pushed."""
    digest = push(reference, f"{registry}/modern", progress=ignore)
    address = f"http://{registry}/v2/modern/manifests/{digest}"
    manifest = requests.get(address, headers={"Accept": MANIFESTS}, timeout=300).json()
    return {re.split(r"[.+]", layer["mediaType"])[-1] for layer in manifest["layers"]}


def test_layers_are_pushed_as_they_were_packed_for_the_nodes(api: Any, registry: str) -> None:
    assert packings(registry, built(api, "for-all", zstd=False)) == {"gzip"}
    assert packings(registry, built(api, "for-new", zstd=True)) == {"zstd"}
    # What the engine has is not packed again.
    assert packings(registry, built(api, "for-all", zstd=True)) == {"gzip"}


def test_a_published_image_has_the_steps_name_and_no_other(api: Any, registry: str) -> None:
    step = small(dockerfile=DOCKERFILE.format("published"), reference=f"{NAME}:published")
    buildkit.find(api).build(replace(step, labels={published.RECIPE_LABEL: step.reference}), progress=ignore)
    name = f"{registry}/published@{push(step.reference, f'{registry}/published', progress=ignore)}"
    api.remove_image(f"{registry}/published:published")
    api.remove_image(step.reference)
    assert inspected(api, step.reference) is None
    published.fetch(api, name, step.reference, progress=ignore)
    found = inspected(api, step.reference)
    assert found is not None
    assert found["RepoTags"] == [step.reference]
    with pytest.raises(ImageError, match="not hvdcloud/another:1"):
        published.fetch(api, name, "hvdcloud/another:1", progress=ignore)
    assert inspected(api, step.reference) == found
