"""Images to start from, by digest: from a registry whose tag was moved, and on an engine that reaches none."""

from __future__ import annotations

import contextlib
import datetime
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docker.errors import ImageNotFound

from hvdcloud.engine import keeps_files
from hvdcloud.image.build.builder import Options, carry_out
from hvdcloud.image.engine_reports import BuildEvent, inspected
from hvdcloud.image.plan import base_images, custom_base
from hvdcloud.image.plan.steps import ImagePlan
from tests.conftest import BUILD_SECONDS
from tests.support.small_image import small
from tools.lock_images import renew

# A build waits while another one compiles Horovod.
pytestmark = [pytest.mark.engine, pytest.mark.timeout(BUILD_SECONDS)]

DEBIAN = base_images.DEBIAN
ON_BASE = "ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nRUN cat /whose > /seen\n"
TODAY = datetime.date(2026, 11, 23)


class Published:
    """An image at a registry; its owner may move the tag."""

    def __init__(self, engine: Any, name: str) -> None:
        self.engine = engine
        self.name = name

    def publish(self, whose: str) -> str:
        """Moves the tag to another image; returns its digest. The engine keeps neither."""
        self.make(whose)
        self.engine.images.push(self.name)
        digests = self.engine.images.get(self.name).attrs["RepoDigests"]
        self.engine.images.remove(self.name, force=True)
        (digest,) = (each.partition("@")[2] for each in digests if each.startswith(self.name.rpartition(":")[0]))
        return str(digest)

    def make(self, whose: str, *, changes: str = f'LABEL {base_images.MADE_HERE}=""') -> None:
        """On this engine alone, without the label of an image that base-image.sh has made."""
        container = self.engine.containers.create(DEBIAN, ["sh", "-c", f"echo {whose} > /whose"])
        try:
            container.start()
            container.wait()
            container.commit(*self.name.rsplit(":", 1), changes=changes)
        finally:
            container.remove(force=True)


@pytest.fixture
def published(engine: Any, registry: str) -> Iterator[Published]:
    found = Published(engine, f"{registry}/base/t{secrets.token_hex(4)}:slim")
    yield found
    repository = found.name.rpartition(":")[0]
    # Listed once: an engine with many images takes seconds for it.
    for image in engine.api.images():
        for tag in image["RepoTags"] or ():
            if tag.startswith((repository, "hvdcloud/t-base:")):
                engine.images.remove(tag, force=True)
        if any(each.startswith(f"{repository}@") for each in image["RepoDigests"] or ()):
            # The last tag may have been the last name.
            with contextlib.suppress(ImageNotFound):
                engine.images.remove(image["Id"], force=True)


def build(engine: Any, base_image: str) -> tuple[str, dict[str, str], list[BuildEvent]]:
    """What an image on `base_image` has seen of it, its labels, and what was said."""
    step = small(
        dockerfile=ON_BASE,
        reference=f"hvdcloud/t-base:{secrets.token_hex(6)}",
        arguments={"BASE_IMAGE": base_image},
        labels=base_images.labels(base_image),
    )
    events: list[BuildEvent] = []
    plan = ImagePlan(reference=step.reference, steps=(step,))
    carry_out(engine.api, plan, Options(progress=events.append))
    seen = engine.containers.run(step.reference, ["-c", "cat /seen"], entrypoint="sh", remove=True)
    return seen.decode().strip(), engine.images.get(step.reference).labels, events


def test_a_tag_that_was_moved_at_the_registry_changes_no_image(engine: Any, published: Published) -> None:
    ours = published.publish("ours")
    theirs = published.publish("theirs")
    assert theirs != ours
    seen, labels, _ = build(engine, f"{published.name}@{ours}")
    assert seen == "ours"
    assert labels[base_images.DIGEST_LABEL] == ours
    # Nor does an engine that has pulled the moved tag.
    engine.images.pull(published.name)
    assert build(engine, f"{published.name}@{ours}")[0] == "ours"


def test_what_was_made_on_this_machine_takes_its_place_and_the_labels_say_so(engine: Any, published: Published) -> None:
    if keeps_files(engine.info()):
        pytest.skip("an engine with containerd's store has a digest of everything: the label says it, see below")
    published.make("this machine")
    pinned = f"{published.name}@sha256:{'1' * 64}"
    seen, labels, events = build(engine, pinned)
    assert seen == "this machine"
    assert labels[base_images.DIGEST_LABEL] == ""
    said = [event.text for event in events if "was made on this machine" in event.text]
    assert said == [f"{published.name} was made on this machine and is taken in place of {pinned}"]


def test_an_image_of_ones_own_by_tag_has_the_digest_that_it_was_pulled_by(engine: Any, published: Published) -> None:
    digest = published.publish("ours")
    engine.images.pull(published.name)
    found = custom_base.find(engine.api, published.name)
    assert found is not None
    assert found.digest == digest
    # With containerd's store, it is the image's id as well.
    assert (found.identity == digest) == keeps_files(engine.info())


def test_lock_images_writes_what_the_registry_has(engine: Any, published: Published, tmp_path: Path) -> None:
    file = tmp_path / "base-images.txt"
    old, new = published.publish("old"), published.publish("new")
    file.write_text(f"# What this is.\n\n# Somewhere.\n{published.name}@{old}\n")
    assert renew(file, today=TODAY) == [published.name]
    host = published.name.partition("/")[0]
    assert file.read_text() == f"# What this is.\n\n# {host}, 2026-11-23\n{published.name}@{new}\n"
    assert renew(file, today=TODAY) == []
    assert inspected(engine.api, published.name) is None, "asking pulls nothing"
