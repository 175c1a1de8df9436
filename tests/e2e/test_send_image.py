"""An image of this machine's engine to other engines, without a registry."""

from __future__ import annotations

import contextlib
import io
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hvdcloud.engine import keeps_files
from hvdcloud.errors import CapacityError, ExitCode, ImageError, NodeError
from hvdcloud.image.publish.host import SendProgress, Sent, discard_parts
from hvdcloud.image.publish.layer_archive import LABEL_PART_OF
from hvdcloud.image.publish.layer_export import image_of_lowest_layers
from hvdcloud.image.publish.over_ssh import send_image
from hvdcloud.image.publish.portion import PORTION_BYTES
from tests.support.engines import same_image_on_both, second_engine
from tests.support.harness import until
from tests.support.layered_image import Line, layer, line, load_layers, tar_of

pytestmark = pytest.mark.engine

NAME = "hvdcloud-test/layers"
# No two of them go together, so that each is kept as soon as it has arrived.
LARGE = PORTION_BYTES + (1 << 20)
TALK = 200_000
"""Bytes at most of requests and descriptions."""


def noise(name: str, size: int) -> bytes:
    """A layer that can't be compressed."""
    return layer(name, random.Random(name).randbytes(size))


LAYERS = (noise("base", LARGE), noise("packages", LARGE), noise("requirements", 3 << 20), noise("program", 1 << 20))


@pytest.fixture(scope="module")
def source(engine: Any) -> Iterator[Any]:
    """This machine's engine; the tests' images are gone at the end."""
    yield engine.api
    for found in engine.api.images(NAME):
        engine.api.remove_image(found["Id"], force=True)


@pytest.fixture(scope="module")
def layered(source: Any) -> str:
    """The image of all layers."""
    return image_of(source, LAYERS)


@contextlib.contextmanager
def host(*, disk_mb: int | None = None, which: int = 0) -> Iterator[tuple[Line, Any]]:
    """Another engine, and its client, whose connection can be cut."""
    from docker import APIClient

    with second_engine(disk_mb=disk_mb, which=which) as found, line(found.docker_host) as way:
        client = APIClient(base_url=way.docker_host, timeout=300)
        try:
            yield way, client
        finally:
            client.close()


def image_of(source: Any, layers: Sequence[bytes], *, tag: str = "all") -> str:
    load_layers(source, f"{NAME}:{tag}", layers)
    return f"{NAME}:{tag}"


def parts_on(client: Any) -> list[str]:
    found: list[str] = client.images(filters={"label": LABEL_PART_OF}, quiet=True)
    return found


def test_a_host_gets_the_layers_that_it_lacks_and_nothing_twice(source: Any, layered: str) -> None:
    told: list[SendProgress] = []
    with host() as (way, client):
        sent = send_image(layered, source=source, targets={"gpu1": client}, on_progress=told.append)["gpu1"]
        assert same_image_on_both(client.inspect_image(layered), source.inspect_image(layered))
        content = sum(map(len, LAYERS))
        assert (sent.layers, sent.content_bytes) == (len(LAYERS), content)
        assert content < sent.wire_bytes < content + TALK
        assert told[-1] == SendProgress(host="gpu1", step="has the image", done=content, total=content)
        assert parts_on(client) == []

        before = way.carried
        assert send_image(layered, source=source, targets={"gpu1": client})["gpu1"] == Sent()
        assert way.carried - before < TALK

        changed = image_of(source, [*LAYERS[:2], noise("other requirements", 2 << 20), LAYERS[3]], tag="2")
        before = way.carried
        sent = send_image(changed, source=source, targets={"gpu1": client})["gpu1"]
        assert sent.layers == 2
        assert (3 << 20) < way.carried - before < (3 << 20) + TALK
        assert same_image_on_both(client.inspect_image(changed), source.inspect_image(changed))
        assert parts_on(client) == []


def test_what_arrived_before_a_cut_is_not_sent_again(source: Any, layered: str) -> None:
    with host() as (way, client):
        # In the midst of the third portion. The second may have been unpacked by then, the first has.
        way.cut_after = sum(map(len, LAYERS[:2])) + (2 << 20)
        with pytest.raises(NodeError, match="the connection to gpu1 was cut while the image was sent"):
            send_image(layered, source=source, targets={"gpu1": client})
        way.restore()
        assert parts_on(client)
        sent = send_image(layered, source=source, targets={"gpu1": client})["gpu1"]
        assert sent.content_bytes in {sum(map(len, LAYERS[kept:])) for kept in (1, 2)}
        assert same_image_on_both(client.inspect_image(layered), source.inspect_image(layered))
        assert parts_on(client) == []


def test_what_a_cut_left_can_be_deleted(source: Any, layered: str) -> None:
    with host() as (way, client):
        way.cut_after = sum(map(len, LAYERS[:2])) + (2 << 20)
        with pytest.raises(NodeError):
            send_image(layered, source=source, targets={"gpu1": client}, labels={"hvdcloud-owner": "ada"})
        way.restore()
        parts = client.images(filters={"label": "hvdcloud-owner=ada"}, quiet=True)
        assert discard_parts(client) >= len(parts) > 0
        # The engine may still have been loading a portion that had arrived whole.

        def empty() -> bool:
            return discard_parts(client) + len(client.images(quiet=True, all=True)) == 0

        until(empty, seconds=30, pause=0.1, what="an engine without images")


def test_a_portion_travels_while_the_engine_unpacks_the_one_before(source: Any, layered: str) -> None:
    with host() as (way, client), ThreadPoolExecutor(max_workers=1) as pool:
        # The engine does not get to say that it has the first layer.
        way.hold_after = len(LAYERS[0])
        sending = pool.submit(send_image, layered, source=source, targets={"gpu1": client})
        try:
            until(lambda: way.carried > len(LAYERS[0]) + LARGE // 4, seconds=30, what="the second layer to travel")
            # Two portions at most take space twice on its disk.
            time.sleep(0.5)
            assert way.carried < sum(map(len, LAYERS[:2])) + TALK
        finally:
            way.hold_after = None
        assert sending.result()["gpu1"].content_bytes == sum(map(len, LAYERS))
        assert same_image_on_both(client.inspect_image(layered), source.inspect_image(layered))
        assert parts_on(client) == []


def test_the_lowest_layers_are_read_from_an_image_that_the_build_left(source: Any, layered: str, engine: Any) -> None:
    sizes = {"low": 1 << 20, "high": 3 << 20}
    files = [(name, random.Random(name).randbytes(size)) for name, size in sizes.items()]
    dockerfile = b"FROM scratch\nCOPY low /\nCOPY high /\n"
    context = io.BytesIO(tar_of([("Dockerfile", dockerfile), *files]))
    engine.images.build(fileobj=context, custom_context=True, tag=f"{NAME}:built")
    built = source.inspect_image(f"{NAME}:built")
    if keeps_files(source.info()):
        pytest.skip("an engine with containerd's store counts the bytes of images in another way")
    lowest = image_of_lowest_layers(source, built)
    assert source.inspect_image(lowest)["RootFS"]["Layers"] == built["RootFS"]["Layers"][:1]
    assert image_of_lowest_layers(source, source.inspect_image(layered)) == ""
    with host() as (_, client):
        assert send_image(f"{NAME}:built", source=source, targets={"gpu1": client})["gpu1"].layers == 2
        assert same_image_on_both(client.inspect_image(f"{NAME}:built"), built)


def test_an_image_whose_layers_are_all_there_is_made_of_them(source: Any) -> None:
    image = image_of(source, LAYERS[2:], tag="upper")
    with host() as (way, client):
        load_layers(client, f"{NAME}:2", LAYERS[2:], word="another")
        sent = send_image(image, source=source, targets={"gpu1": client})["gpu1"]
        assert (sent.layers, sent.content_bytes) == (0, 0)
        assert way.carried < len(LAYERS[2]) + len(LAYERS[3]) + TALK
        assert same_image_on_both(client.inspect_image(image), source.inspect_image(image))
        assert parts_on(client) == []


def test_hosts_are_sent_to_at_once_and_one_that_is_lost_does_not_stop_the_others(source: Any, layered: str) -> None:
    with host() as (_, first), host(which=1) as (way, second):
        load_layers(first, f"{NAME}:base", LAYERS[:1])
        way.cut_after = LARGE // 2
        with pytest.raises(NodeError, match="gpu2"):
            send_image(layered, source=source, targets={"gpu1": first, "gpu2": second})
        assert same_image_on_both(first.inspect_image(layered), source.inspect_image(layered))
        way.restore()
        sent = send_image(layered, source=source, targets={"gpu1": first, "gpu2": second})
        assert (sent["gpu1"].layers, sent["gpu2"].layers) == (0, len(LAYERS))
        assert same_image_on_both(second.inspect_image(layered), source.inspect_image(layered))


def test_a_full_disk_is_named_and_nothing_is_left_on_it(source: Any, layered: str) -> None:
    with host(disk_mb=48) as (_, client):
        with pytest.raises(CapacityError, match="the disk of gpu1's Docker engine is full") as raised:
            send_image(layered, source=source, targets={"gpu1": client})
        assert raised.value.code == ExitCode.CAPACITY
        assert client.images(all=True) == []


def test_an_image_that_is_not_here_is_named(source: Any) -> None:
    with pytest.raises(ImageError, match=f"there is no image {NAME}:none to send"):
        send_image(f"{NAME}:none", source=source, targets={})
