"""`python -m tests.bench.send_image`: an image to hosts without a registry, against `docker save | ssh docker load`.

Two further engines of this machine, each behind an sshd, as hosts are. The floor sends the image to one of them,
hvdcloud to both at once; each round begins with engines that have no image. Then one layer is changed and sent again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from hvdcloud import engine
from hvdcloud.image.publish.over_ssh import SILENCE_SECONDS, Sent, send_image
from tests.bench.publish import publish, say
from tests.support.engines import second_engine
from tests.support.harness import until

FEWEST_RUNS = 3
"""Fewer do not replace the results that are committed."""
CHANGED_MB = 20
HOSTS = ("gpu1", "gpu2")


class Login:
    """An sshd of this machine, and how to reach it."""

    def __init__(self, folder: Path) -> None:
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        (folder / "keys").write_bytes((folder / "user.pub").read_bytes())
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        kind, key, *_ = (folder / "host.pub").read_text().split()
        (folder / "known").write_text(f"[127.0.0.1]:{self.port} {kind} {key}\n")
        options = {
            "AuthorizedKeysFile": folder / "keys",
            "HostKey": folder / "host",
            "ListenAddress": "127.0.0.1",
            "PidFile": "none",
            "Port": self.port,
            "StrictModes": "no",
            "UsePAM": "no",
        }
        (folder / "config").write_text("".join(f"{name} {value}\n" for name, value in options.items()))
        self.command = ["ssh", "-F", "none", "-p", str(self.port), "-i", str(folder / "user")]
        self.command += ["-o", f"UserKnownHostsFile={folder}/known", "-o", "BatchMode=yes"]
        sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
        assert sshd is not None, "no sshd: install openssh-server"
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        self._server = subprocess.Popen([sshd, "-D", "-e", "-f", folder / "config"], stderr=subprocess.DEVNULL)
        until(self._answers, seconds=30, what="the sshd")

    def close(self) -> None:
        self._server.terminate()
        self._server.wait(timeout=30)

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    @contextmanager
    def forwarded(self, remote: Path, here: Path) -> Iterator[str]:
        """A socket of the host as one of this machine."""
        process = subprocess.Popen([*self.command, "-N", "-L", f"{here}:{remote}", "127.0.0.1"])
        try:
            until(here.exists, seconds=30, what="the forwarded socket")
            yield f"unix://{here}"
        finally:
            process.terminate()
            process.wait(timeout=30)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("image", help="a reference of this machine's engine, such as a project's image")
    parser.add_argument("--runs", type=int, default=FEWEST_RUNS)
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="hvd-"))
        stack.callback(shutil.rmtree, folder)
        source = stack.enter_context(closing(engine.connect(timeout=SILENCE_SECONDS)))
        login = Login(folder)
        stack.callback(login.close)
        sockets = {}
        targets: dict[str, Any] = {}
        for which, host in enumerate(HOSTS):
            found = stack.enter_context(second_engine(which=which))
            sockets[host] = found.docker_host
            way = login.forwarded(Path(found.docker_host.removeprefix("unix://")), folder / host)
            targets[host] = client(stack.enter_context(way))
        changed = changed_image(source, arguments.image)
        stack.callback(source.images.remove, changed)
        document = measured(source, login, targets, sockets, arguments.image, changed, arguments.runs)
    publish("send_image", document, tables(document), folder=arguments.results, complete=arguments.runs >= FEWEST_RUNS)


def client(address: str) -> Any:
    from docker import APIClient

    return APIClient(base_url=address, timeout=SILENCE_SECONDS)


def changed_image(source: Any, image: str) -> str:
    """The image with one more layer, which can't be compressed."""
    with tempfile.TemporaryDirectory() as context:
        (Path(context) / "Dockerfile").write_text(
            f"FROM {image}\nRUN head -c {CHANGED_MB}000000 /dev/urandom > /changed\n"
        )
        reference = "hvdcloud-bench/changed:1"
        source.images.build(path=context, tag=reference, rm=True, nocache=True)
    return reference


def measured(
    source: Any, login: Login, targets: Any, sockets: Any, image: str, changed: str, runs: int
) -> dict[str, Any]:
    times_of: dict[str, list[float]] = {name: [] for name in ("floor", "both", "again", "one_layer")}
    floor, both, again, one_layer = times_of.values()
    sent: dict[str, Sent] = {}
    for number in range(runs):
        say(f"round {number + 1} of {runs}")
        empty(targets)
        began = time.monotonic()
        save = subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE)
        load = [*login.command, "127.0.0.1", "docker", "--host", sockets[HOSTS[0]], "load"]
        subprocess.run(load, stdin=save.stdout, check=True, stdout=subprocess.DEVNULL)
        save.wait()
        floor.append(time.monotonic() - began)
        empty(targets)
        for times, reference in ((both, image), (again, image), (one_layer, changed)):
            began = time.monotonic()
            sent = send_image(reference, source=source.api, targets=targets)
            times.append(time.monotonic() - began)
            if times is both:
                whole = sent[HOSTS[0]]
        say(f"  floor {floor[-1]:.1f} s, both {both[-1]:.1f} s, changed {one_layer[-1]:.1f} s")
    last = sent[HOSTS[0]]
    return {
        "image_bytes": source.images.get(image).attrs["Size"],
        "floor_one_host_seconds": floor,
        "two_hosts_seconds": both,
        "again_seconds": again,
        "changed_layer_seconds": one_layer,
        "whole": {"layers": whole.layers, "content_bytes": whole.content_bytes, "wire_bytes": whole.wire_bytes},
        "changed": {"layers": last.layers, "content_bytes": last.content_bytes, "wire_bytes": last.wire_bytes},
    }


def empty(targets: Any) -> None:
    for each in targets.values():
        for found in each.images(quiet=True):
            each.remove_image(found, force=True)


def tables(document: dict[str, Any]) -> str:
    median = {name: statistics.median(values) for name, values in document.items() if name.endswith("_seconds")}
    floor = median["floor_one_host_seconds"]
    whole, changed = document["whole"], document["changed"]
    lines = [
        "# An image to hosts, without a registry",
        "",
        f"An image of {document['image_bytes'] / 1e9:.2f} GB, {len(document['two_hosts_seconds'])} rounds, medians. "
        "All engines share this machine's processors, so that two hosts unpack at the cost of two.",
        "",
        "| what | seconds | to the floor | bytes for a host |",
        "| --- | --- | --- | --- |",
        f"| `docker save` \\| `ssh docker load`, one host | {floor:.1f} | 1.00 | |",
        f"| two hosts at once | {median['two_hosts_seconds']:.1f} | {median['two_hosts_seconds'] / floor:.2f} "
        f"| {whole['wire_bytes'] / 1e6:.1f} MB in {whole['layers']} layers |",
        f"| again | {median['again_seconds']:.2f} | {median['again_seconds'] / floor:.2f} | 0 |",
        f"| one layer changed, of {CHANGED_MB} MB | {median['changed_layer_seconds']:.1f} "
        f"| {median['changed_layer_seconds'] / floor:.2f} "
        f"| {changed['wire_bytes'] / 1e6:.1f} MB in {changed['layers']} layers |",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
