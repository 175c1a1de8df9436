"""A host that an image is sent to: what it has of it, and how its engine takes the rest."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hvdcloud.engine import keeps_files, says_disk_full
from hvdcloud.errors import CapacityError, HvdcloudError, ImageError, NodeError
from hvdcloud.image.publish.compressed import Pace, compressed
from hvdcloud.image.publish.layer_archive import LABEL_PART_OF, Blob, Content, Wanted, archive, layout, same_image
from hvdcloud.image.publish.layer_export import Export
from hvdcloud.image.publish.portion import PORTION_BYTES, Portion, has_failed, portions
from hvdcloud.units import size

_TELL_BYTES = 1 << 20
_FIRST_WITH_ZSTD = 23
"""https://github.com/moby/moby/releases/tag/v23.0.0"""
_IN_FLIGHT = 2
"""Portions at most that an engine has not unpacked: each takes space twice on its disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendProgress:
    """How far a host is.

    Attributes:
        step: what it waits for or does, in words.
        done: bytes of layers that have been sent, before compression.
        total: bytes of the layers that it lacks; 0: not known yet.
    """

    host: str
    step: str
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What it took to have the image on a host.

    Attributes:
        layers: how many the host lacked.
        content_bytes: of these layers.
        wire_bytes: that the host's engine was given.
    """

    layers: int = 0
    content_bytes: int = 0
    wire_bytes: int = 0


def discard_parts(target: Any, *, of: str = "") -> int:
    """Deletes what `send_image` left on a host whose connection was cut; returns how many images that were.

    Args:
        target: docker-py's APIClient of the host's engine.
        of: the id of the image that was sent; "": of all.

    Raises:
        docker.errors.APIError: the engine refuses.
    """
    found = target.images(filters={"label": f"{LABEL_PART_OF}={of}" if of else LABEL_PART_OF}, quiet=True)
    return sum(_deleted(target, image_id) for image_id in found)


@dataclass(slots=True, kw_only=True)
class Host:
    """A host, and what it has of the image.

    Args:
        client: docker-py's APIClient of its engine.
        say: told how far it is; may be called from several threads.
    """

    name: str
    client: Any
    wanted: Wanted
    say: Callable[[SendProgress], None]
    first: int = 0
    """How many of the lowest layers the host has."""
    keeps_files: bool = False
    """Whether its engine has containerd's store, which keeps layers as the files that it was given."""
    version: str = ""
    """Of its engine."""
    pace: Pace = field(default_factory=Pace)
    done: int = 0
    wire: int = 0
    complete: bool = False
    """Whether it has the image."""
    _part: str = ""
    _blobs: Sequence[Blob] = ()
    """The layers' files, if it keeps files."""
    _made: str = ""
    """The image, as its engine named it."""
    _lacked: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def lacks(self) -> tuple[str, ...]:
        return self.wanted.layers[self.first :]

    def sent(self) -> Sent:
        return Sent(layers=self._lacked, content_bytes=self.done, wire_bytes=self.wire)

    def look(self, here: Mapping[str, Any]) -> None:
        """Find out whether it has the image, and what its engine takes."""
        self.say(SendProgress(host=self.name, step="looking which layers it has"))
        with _explained(self):
            if self._has(here):
                self.complete = True
                return
            info = self.client.info()
            self.keeps_files = keeps_files(info)
            self.version = str(info.get("ServerVersion", ""))

    def take(self, export: Export, here: Mapping[str, Any]) -> None:
        """Send what it lacks."""
        try:
            with _explained(self):
                self.say(SendProgress(host=self.name, step="reading the image"))
                if self.keeps_files:
                    self._blobs = export.blobs()
                self._search()
                self._lacked = len(self.lacks())
                export.done_with(self._has_all_of(0))
                if not self.first and not self.keeps_files:
                    export.read_lowest()
                self._take(export)
                if not self._has(here):
                    raise ImageError(
                        f"{self.name} has another image than {self.wanted.tag or self.wanted.id} after it was sent",
                        hint="see the log of the Docker engine there; then try again",
                    )
                # Also those of a connection that was cut earlier.
                discard_parts(self.client, of=self.wanted.id)
            self.say(SendProgress(host=self.name, step="has the image", done=self.done, total=self.done))
        except (CapacityError, ImageError):
            # The error says more than that what was sent could not be deleted either.
            with contextlib.suppress(HvdcloudError), _explained(self):
                discard_parts(self.client, of=self.wanted.id)
            raise
        finally:
            export.done_with(set(self.lacks()))

    def _take(self, export: Export) -> None:
        """Send portion by portion, the next one while the engine unpacks the one before."""
        layers, start = self.wanted.layers, self.first
        loads: list[Future[None]] = []
        with ThreadPoolExecutor(max_workers=_IN_FLIGHT) as pool:
            # Of an image that has its layers already a host takes the configuration.
            while not loads or (start < len(layers) and not any(map(has_failed, loads))):
                contents = self._next(export, start)
                portion = Portion(
                    start=start,
                    contents=contents,
                    config=export.config() if start + len(contents) == len(layers) else b"",
                    before=loads[-1] if loads else None,
                )
                loads.append(pool.submit(self._bring, portion, export))
                loads[-1].add_done_callback(portion.ended)
                portion.sent.wait()
                start += len(contents)
        for load in loads:
            load.result()

    def _bring(self, portion: Portion, export: Export) -> None:
        """Have the engine take a portion, after the one before."""
        layers, upto = self.wanted.layers, portion.start + len(portion.contents)
        present: dict[str, Content] = {}
        for layer, content in zip(layers[portion.start : upto], portion.contents, strict=True):
            present.setdefault(layer, content)
        config, tag = (portion.config, self.wanted.tag) if portion.config else (self.wanted.part(upto), "")
        manifest = export.manifest if portion.config else b""
        self._made = self._load(config, upto, self._counted(present, portion, export), tag=tag, manifest=manifest)
        self.pace.unpacked(sum(content.size for content in present.values()), time.monotonic() - portion.turn)
        self.first = upto
        export.done_with(self._has_all_of(portion.start))
        if not portion.config:
            self._forget_part(self._made)

    def _has_all_of(self, start: int) -> set[str]:
        """The layers from this one on that it has and will not take again: the same may occur twice, an empty one."""
        return set(self.wanted.layers[start : self.first]) - set(self.lacks())

    def _next(self, export: Export, start: int) -> list[Content]:
        """The layers that go next, waiting until they have been read."""
        lacks = self.wanted.layers[start:]
        contents: list[Content] = []
        for layer in lacks:
            contents.append(export.layer(layer))
            if export.packed_with_zstd(layer):
                self._check_zstd()
            sizes = [each.size for each in contents]
            if len(portions(sizes, enough=PORTION_BYTES)) > 1:
                return contents[:-1]
            if sum(sizes) >= PORTION_BYTES:
                break
        return contents

    def _check_zstd(self) -> None:
        """Raises ImageError: its engine takes no layers packed with zstd."""
        major = self.version.partition(".")[0]
        if not self.keeps_files and major.isdigit() and int(major) < _FIRST_WITH_ZSTD:
            what = f"the image {self.wanted.tag or self.wanted.id}, built for VMs"
            raise ImageError(
                f"{what}, has layers packed with zstd, which Docker {self.version} on {self.name} does not unpack",
                hint=f"update Docker on {self.name} to {_FIRST_WITH_ZSTD}.0 or later",
            )

    def _counted(self, present: Mapping[str, Content], portion: Portion, export: Export) -> dict[str, Content]:
        """The same contents, of which is told how far they are; the last ends when it is the portion's turn."""

        def tell(step: str) -> None:
            left = export.left(self.wanted.layers[portion.start :])
            total = 0 if left is None else before + left
            self.say(SendProgress(host=self.name, step=step, done=self.done, total=total))

        def told(content: Content) -> Iterator[bytes]:
            for chunk in content.chunks():
                export.check()
                portion.check()
                yield chunk
                self.done += len(chunk)
                if self.done % _TELL_BYTES < len(chunk):
                    tell("sending the image")
            if self.done == before + size_of_all:
                if portion.config:
                    tell("unpacking the image")
                portion.wait_for_turn()
                export.check()

        before, size_of_all = self.done, sum(content.size for content in present.values())
        return {layer: Content(size=content.size, chunks=partial(told, content)) for layer, content in present.items()}

    def _has(self, here: Mapping[str, Any]) -> bool:
        """Whether the host has the image; if so, it has its name from then on."""
        from docker.errors import ImageNotFound
        from docker.utils import parse_repository_tag

        for name in filter(None, (self.wanted.id, self.wanted.tag, self._made)):
            try:
                there = self.client.inspect_image(name)
            except ImageNotFound:
                continue
            if same_image(here, there):
                if self.wanted.tag and self.wanted.tag not in (there.get("RepoTags") or []):
                    self.client.tag(name, *parse_repository_tag(self.wanted.tag))
                return True
        return False

    def _search(self) -> None:
        """How many of the lowest layers it has: as many as it takes an image of, without a file of any.

        The image that it makes in this way keeps them, whatever is deleted there meanwhile.
        """
        from docker.errors import APIError

        low, high = 0, len(self.wanted.layers)
        while low < high:
            middle = high if high == len(self.wanted.layers) and not low else (low + high + 1) // 2
            try:
                made = self._load(self.wanted.part(middle), middle, {})
            except (APIError, ImageError):
                high = middle - 1
            else:
                low = middle
                self._forget_part(made)
        self.first = low

    def _load(
        self, config: bytes, upto: int, present: Mapping[str, Content], *, tag: str = "", manifest: bytes = b""
    ) -> str:
        """Have the engine take an archive; returns the id that it gave the image."""
        layers = self.wanted.layers[:upto]
        if self.keeps_files:
            files = {
                blob.digest: present[layer]
                for layer, blob in zip(layers, self._blobs, strict=False)
                if layer in present
            }
            chunks = layout(config, self._blobs[:upto], files, manifest=manifest)
        else:
            chunks = archive(config, layers, present, tag=tag)
        if present:
            # How fast a connection takes a few words says nothing.
            chunks = compressed(chunks, self.pace)
        made = ""
        # Quiet: else the engine tells of every 512 KiB.
        for item in self.client.load_image(self._through_wire(chunks), quiet=True):
            if "error" in item:
                raise _refused(self, str(item["error"]))
            said = str(item.get("stream", ""))
            if said.startswith("Loaded image"):
                made = said.partition(": ")[2].strip()
            elif said.startswith("Error unpacking image"):
                # containerd's store has it all the same, and no container can be made of it.
                _deleted(self.client, made)
                raise _refused(self, said.strip())
        return made

    def _through_wire(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            with self._lock:
                self.wire += len(chunk)
            yield chunk

    def _forget_part(self, newer: str) -> None:
        """Delete the image of the first layers, now that a newer one has them."""
        if self._part and self._part != newer:
            _deleted(self.client, self._part)
        self._part = newer


def _deleted(client: Any, image_id: str) -> bool:
    from docker.errors import APIError, ImageNotFound

    try:
        client.remove_image(image_id)
    except ImageNotFound:
        return False
    except APIError as error:
        # A container of another user's uses it.
        if error.status_code != 409:
            raise
        return False
    return True


@contextlib.contextmanager
def _explained(host: Host) -> Iterator[None]:
    """Raise what a connection or the engine says during the block as an error of this host."""
    from docker.errors import APIError, DockerException
    from requests.exceptions import RequestException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except APIError as error:
        raise _refused(host, str(error.explanation or error)) from error
    except (RequestException, HTTPError, DockerException, OSError) as error:
        arrived = f"after {size(host.done)}" if host.done else "before the first layer"
        raise NodeError(
            f"the connection to {host.name} was cut while the image was sent, {arrived}: {error}",
            hint="the same command again sends only what is missing",
        ) from error


def _refused(host: Host, said: str) -> HvdcloudError:
    what = host.wanted.tag or host.wanted.id
    if says_disk_full(said):
        return CapacityError(
            f"the disk of {host.name}'s Docker engine is full, so that it can't take the image {what}",
            hint="`docker system df` there shows what uses it, `docker image prune` frees some",
            details=said,
        )
    return ImageError(
        f"the Docker engine of {host.name} did not take the image {what}: {said}",
        hint="see the log of the Docker engine there; then try again",
    )
