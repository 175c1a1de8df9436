"""The layers of an image, as its engine's `save` gives them: each in a file, for as long as a host still lacks it.

`save` gives layers in the order of names that the engine chose, and a host takes them from the lowest up, so that they
have to wait somewhere. The files have no names: nothing is left of them when this process dies.

An engine gives the first layer when it has packed the last. Where it has an image of the lowest ones alone, as a build
leaves it, they are read from that meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any, cast

from hvdcloud.cluster.files import explained, make_folder, state_root
from hvdcloud.errors import HvdcloudError, ImageError
from hvdcloud.image.publish.layer_archive import Blob, Content, blob_of

# What malloc takes without asking the kernel for pages each time.
_CHUNK = 64 << 10
# An engine gives 32 KiB at a time.
_WRITE_BUFFER = 128 << 10
# The rest of an archive are descriptions; a configuration has 10 kB, and the engine reads no larger one than 8 MB.
_DESCRIPTION_BYTES = 8 << 20
# Of an image's size: these layers are packed twice.
_SMALL = 1 / 3


class ExportClosedError(Exception):
    """Nobody waits for the layers any more."""


def image_of_lowest_layers(source: Any, inspected: Mapping[str, Any]) -> str:
    """The id of the largest image that this one was built on and that is small against it; "": the engine has none.

    Args:
        source: docker-py's APIClient of the engine.
        inspected: the image.
    """
    images = {each["Id"]: each for each in source.images(all=True)}
    below = images.get(inspected.get("Parent") or "")
    while below is not None and below["Size"] > inspected["Size"] * _SMALL:
        below = images.get(below.get("ParentId") or "")
    return str(below["Id"]) if below is not None and below["Size"] else ""


class Export:
    """Reads an image from its engine while hosts already take what has been read.

    Args:
        chunks: of the engine's `save`; called once.
        lowest: the same of an image of the lowest layers alone, for `read_lowest`; None: the engine has none.
        image: for errors.
        image_id: its configuration's digest, or, at an engine with containerd's store, its manifest's.
        layers: digests of its layers, the lowest first.
        wanted: how many hosts lack a layer.
    """

    def __init__(
        self,
        chunks: Callable[[], Iterable[bytes]],
        *,
        lowest: Callable[[], Iterable[bytes]] | None = None,
        image: str,
        image_id: str,
        layers: tuple[str, ...],
        wanted: Counter[str],
    ) -> None:
        self._chunks, self._image, self._image_id, self._layers = chunks, image, image_id, layers
        self._wanted = wanted
        self._changed = threading.Condition()
        self._files: dict[str, IO[bytes]] = {}
        self._blobs: dict[str, Blob] = {}
        self._config = b""
        self.manifest = b""
        """The image's, once all has been read; empty: its engine has none, or does not give it."""
        self._ended = False
        self._error: HvdcloudError | None = None
        self._closed = False
        self._lowest = lowest
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Export:
        make_folder(state_root())
        self._start(self._run)
        return self

    def _start(self, call: Callable[[], object]) -> None:
        self._threads.append(threading.Thread(target=call, name="image-export", daemon=True))
        self._threads[-1].start()

    def __exit__(self, *_: object) -> None:
        self.close()
        # They end at the next chunk that the engine sends, which may be silent before the first.
        for thread in self._threads:
            thread.join(timeout=5)
        with self._changed:
            for file in self._files.values():
                file.close()
            self._files.clear()

    def close(self) -> None:
        """Have everybody who waits for a layer stop."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def read_lowest(self) -> None:
        """Called when a host lacks the lowest layers: read them sooner than the others, if that can be done."""
        with self._changed:
            lowest, self._lowest = self._lowest, None
        if lowest is not None:
            # What fails of it is read with all others.
            self._start(lambda: self._read_from(lowest, whole=False))

    def check(self) -> None:
        """Raise ExportClosedError if this is closed."""
        if self._closed:
            raise ExportClosedError

    def layer(self, digest: str) -> Content:
        """The content of a layer, as soon as it has been read.

        Raises:
            HvdcloudError: the image can't be read, or there is no space for it on this machine.
            ExportClosedError: this was closed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or digest in self._files or self._ended)
            self.check()
            if (file := self._files.get(digest)) is None:
                raise self._error or self._incomplete(f"its layer {digest} is missing")
        size = os.fstat(file.fileno()).st_size
        return Content(size=size, chunks=lambda: self._read(file, size))

    def blobs(self) -> tuple[Blob, ...]:
        """The layers as the engine keeps them in files, the lowest first, when all has been read. Raises as `layer`."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._ended)
            self.check()
            if missing := [layer for layer in self._layers if layer not in self._blobs]:
                raise self._error or self._incomplete(f"its layer {missing[0]} is missing")
            return tuple(self._blobs[layer] for layer in self._layers)

    def packed_with_zstd(self, digest: str) -> bool:
        """Of a layer that has been read."""
        return self._blobs[digest].media_type.endswith("+zstd")

    def config(self) -> bytes:
        """The image's configuration, when all has been read. Raises as `layer` does."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._ended or bool(self._config))
            self.check()
            if not self._config:
                raise self._error or self._incomplete("its configuration is missing")
            return self._config

    def left(self, digests: Iterable[str]) -> int | None:
        """Bytes of these layers; None while not all have been read."""
        with self._changed:
            files = [self._files.get(digest) for digest in set(digests)]
            sizes = [os.fstat(file.fileno()).st_size for file in files if file is not None]
        return sum(sizes) if len(sizes) == len(files) else None

    def done_with(self, digests: Iterable[str]) -> None:
        """A host has these layers, or will never take them."""
        with self._changed:
            self._wanted.subtract(digests)
            for digest in set(digests):
                if self._wanted[digest] <= 0 and (file := self._files.pop(digest, None)) is not None:
                    file.close()

    def _read(self, file: IO[bytes], size: int) -> Iterator[bytes]:
        for offset in range(0, size, _CHUNK):
            self.check()
            yield os.pread(file.fileno(), min(_CHUNK, size - offset), offset)

    def _run(self) -> None:
        try:
            self._error = self._read_from(self._chunks, whole=True)
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _read_from(self, chunks: Callable[[], Iterable[bytes]], *, whole: bool) -> HvdcloudError | None:
        """Keep what an engine gives; returns why that failed."""
        from docker.errors import APIError, DockerException
        from requests.exceptions import RequestException
        from urllib3.exceptions import HTTPError

        try:
            self._take(_Stream(chunks()), whole=whole)
        except ExportClosedError:
            # The caller that closed this knows.
            return None
        except HvdcloudError as known:
            return known
        except APIError as refusal:
            return self._incomplete(str(refusal.explanation or refusal))
        except (RequestException, HTTPError, DockerException, OSError, tarfile.TarError, ValueError, KeyError) as cause:
            return self._incomplete(str(cause))
        return None

    def _take(self, stream: _Stream, *, whole: bool) -> None:
        """Keep what is wanted of the archive, and what might be; not `whole`: only what certainly is."""
        descriptions: dict[str, bytes] = {}
        unknown: dict[str, IO[bytes]] = {}
        # Not "r|", which copies every byte several times: a quarter of what the engine needs to send it.
        with tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r:") as archive:
            for member in archive:
                self.check()
                if not member.isfile():
                    continue
                # Engines from 25 on name a layer's file by its digest, which hosts check: it need not be computed.
                named = f"sha256:{member.name.rpartition('/')[2]}"
                known = named if named in self._layers else ""
                if known and not self._is_wanted(known):
                    self._blobs[known] = blob_of(known, member.size, b"")
                    continue
                file, digest = self._copied(stream, member.size, digest=known)
                if digest == self._image_id:
                    # With containerd's store, an image's id is its manifest's digest.
                    document = json.loads(_content(file))
                    if "rootfs" in document:
                        self._config_is(_content(file))
                    elif "layers" in document:
                        self.manifest = _content(file)
                if digest in self._layers:
                    self._blobs[digest] = blob_of(digest, member.size, b"")
                    self._keep(digest, file)
                elif member.size <= _DESCRIPTION_BYTES:
                    descriptions[member.name] = _content(file)
                    file.close()
                else:
                    unknown[member.name] = file
        if self._config or not whole:
            return
        # From here on it is containerd's store, which may keep layers compressed, under other digests.
        manifest = json.loads(descriptions["manifest.json"])[0]
        for digest, name in zip(self._layers, manifest["Layers"], strict=True):
            if name in descriptions and digest not in self._blobs:
                unknown[name] = self._unnamed_file()
                with explained(state_root()):
                    unknown[name].write(descriptions[name])
                    unknown[name].flush()
            if name in unknown:
                file = unknown.pop(name)
                named = f"sha256:{name.rpartition('/')[2]}"
                self._blobs[digest] = blob_of(named, os.fstat(file.fileno()).st_size, os.pread(file.fileno(), 4, 0))
                self._keep(digest, file)
        self._config_is(descriptions[manifest["Config"]])

    def _is_wanted(self, digest: str) -> bool:
        return self._wanted[digest] > 0 and digest not in self._files

    def _copied(self, stream: _Stream, size: int, *, digest: str) -> tuple[IO[bytes], str]:
        """The next bytes in a file, and their digest, which is computed where it is not known."""
        sha256 = hashlib.sha256()
        file = self._unnamed_file()
        for piece in stream.pieces(size):
            self.check()
            if not digest:
                sha256.update(piece)
            with explained(state_root()):
                file.write(piece)
        with explained(state_root()):
            file.flush()
        return file, digest or f"sha256:{sha256.hexdigest()}"

    def _unnamed_file(self) -> IO[bytes]:
        with explained(state_root()):
            return tempfile.TemporaryFile(dir=state_root(), buffering=_WRITE_BUFFER)

    def _keep(self, digest: str, file: IO[bytes]) -> None:
        with self._changed:
            if self._is_wanted(digest) and not self._closed:
                self._files[digest] = file
                self._changed.notify_all()
            else:
                file.close()

    def _config_is(self, config: bytes) -> None:
        with self._changed:
            self._config = config
            self._changed.notify_all()

    def _incomplete(self, why: str) -> HvdcloudError:
        message = f"the Docker engine here did not give the image {self._image}: {why}"
        return ImageError(message, hint="hvdcloud build makes it again if it is gone; else try again")


class _Stream:
    """The chunks as a file that is read once, from its beginning to its end."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._rest = memoryview(b"")
        self._position = 0

    def tell(self) -> int:
        return self._position

    def seek(self, position: int) -> None:
        """Pass over all before the position."""
        for _ in self.pieces(position - self._position):
            pass

    def read(self, size: int) -> bytes:
        """The next bytes; fewer at the end."""
        return b"".join(self.pieces(size, whole=False))

    def pieces(self, size: int, *, whole: bool = True) -> Iterator[memoryview]:
        """The next bytes as they come. Raises tarfile.ReadError: these are fewer, and it had to be the `whole`."""
        while size > 0:
            self._rest = self._rest or memoryview(next(self._chunks, b""))
            if not self._rest:
                if whole:
                    raise tarfile.ReadError("unexpected end of data")
                return
            piece, self._rest = self._rest[:size], self._rest[size:]
            self._position += len(piece)
            size -= len(piece)
            yield piece


def _content(file: IO[bytes]) -> bytes:
    return os.pread(file.fileno(), _DESCRIPTION_BYTES, 0)
