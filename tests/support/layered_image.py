"""Images whose layers a test chooses, without a build; and a connection to an engine that a test can cut."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import socket
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.support.harness import TEST_LABEL


def layer(name: str, content: bytes) -> bytes:
    """A layer with one file, the same bytes for the same content."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.GNU_FORMAT) as archive:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return data.getvalue()


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def config_of(layers: Sequence[bytes], *, word: str = "") -> bytes:
    """The configuration of an image of these layers."""
    document = {
        "architecture": "amd64",
        "config": {"Labels": {TEST_LABEL: "layers", "word": word}, "Cmd": ["/none"]},
        "created": "2026-01-01T00:00:00Z",
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [digest(each) for each in layers]},
    }
    return json.dumps(document).encode()


def tar_of(files: Sequence[tuple[str, bytes]]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return data.getvalue()


def load_layers(client: Any, reference: str, layers: Sequence[bytes], *, word: str = "") -> str:
    """Have an engine know an image of these layers; returns its id.

    Args:
        client: docker-py's APIClient.
        word: makes it another image of the same layers.
    """
    config = config_of(layers, word=word)
    names = [f"{number}.tar" for number in range(len(layers))]
    manifest = [{"Config": "config.json", "RepoTags": [reference], "Layers": names}]
    files = [("config.json", config), ("manifest.json", json.dumps(manifest).encode())]
    for item in client.load_image(tar_of([*files, *zip(names, layers, strict=True)])):
        assert "error" not in item, item
    return digest(config)


class Line:
    """A connection to an engine's socket, through a socket of its own.

    Attributes:
        docker_host: for clients.
        carried: bytes that the engine was given.
        cut_after: this many bytes later every connection breaks, and no new one is taken; None: never.
        hold_after: this many bytes later what the engine answers waits until this is None again.
    """

    def __init__(self, folder: Path, engine: str) -> None:
        self.docker_host = f"unix://{folder}/line.sock"
        self.carried = 0
        self.cut_after: int | None = None
        self.hold_after: int | None = None
        self._engine = engine
        self._open: list[socket.socket] = []
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(f"{folder}/line.sock")
        self._server.listen(16)
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._start(self._accept)

    def close(self) -> None:
        # A thread that waits in accept() does not notice that its socket was closed.
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        with self._lock:
            self.cut_after, self.hold_after = -1, None
        self._break()
        for thread in self._threads:
            thread.join(timeout=30)

    def restore(self) -> None:
        """Take connections again. All earlier ones are broken by then."""
        with self._lock:
            self.cut_after = None

    def _start(self, target: Any, *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._server.accept()
            except OSError:
                return
            if self._is_cut():
                here.close()
                continue
            there = socket.socket(socket.AF_UNIX)
            there.connect(self._engine.removeprefix("unix://"))
            with self._lock:
                self._open += [here, there]
            self._start(self._carry, here, there, True)
            self._start(self._carry, there, here, False)

    def _carry(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                with self._lock:
                    self.carried += len(data) if counted else 0
                if self._is_cut():
                    self._break()
                    return
                while not counted and (held := self.hold_after) is not None and self.carried > held:
                    time.sleep(0.01)
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def _is_cut(self) -> bool:
        return self.cut_after is not None and self.carried > self.cut_after

    def _break(self) -> None:
        with self._lock:
            # Restored since this was found.
            if not self._is_cut():
                return
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()
            self._open = []


@contextlib.contextmanager
def line(engine: str) -> Iterator[Line]:
    """A line to the engine of this address."""
    # The path of a Unix socket may not be longer than 107 characters.
    with tempfile.TemporaryDirectory(prefix="hvd-") as folder:
        found = Line(Path(folder), engine)
        try:
            yield found
        finally:
            found.close()
