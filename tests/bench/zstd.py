"""`python -m tests.bench.zstd`: an image's layers packed with zstd against gzip, as nodes pull them.

A Docker engine with containerd's image store packs the CPU image of PyTorch in both ways and pushes it to a registry
here. Engines with empty disks then pull it: one with that store, and one with Docker's own, as on the VMs.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from hvdcloud.config.model import ImageConfig
from hvdcloud.image.build.builder import build
from tests.bench.images.__main__ import interrupted, stored
from tests.bench.measure import Sample, output, run
from tests.bench.publish import ends_in_words, publish, say
from tests.bench.report import machine, table
from tests.bench.workplace import HERE
from tests.standins.registry import running_registry
from tests.support.modern_engine import ModernEngine, modern_engine

COMPRESSIONS = ("gzip", "zstd")
STORES = {"containerd": True, "overlay2": False}
FEWEST_ROUNDS = 2
"""Fewer do not replace the results that are committed."""
LIMIT_SECONDS = 600.0
_PACKED = re.compile(r"exporting layers (\d+\.\d+)s done")


def docker(modern: ModernEngine, *words: str) -> Sample:
    """A command of the engine's own client."""
    environment = {"DOCKER_HOST": modern.engine.docker_host, "DOCKER_CONFIG": str(modern.config)}
    return run([str(modern.programs / "docker"), *words], env=environment, limit=LIMIT_SECONDS)


def give(modern: ModernEngine, image: str) -> None:
    """Have the engine know an image of this machine's."""
    with subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE) as saving:
        loading = [str(modern.programs / "docker"), "--host", modern.engine.docker_host, "load"]
        subprocess.run(loading, stdin=saving.stdout, stdout=subprocess.DEVNULL, check=True)


def busy(modern: ModernEngine) -> float:
    """Seconds of a processor that the engine's own code has taken, and that of what it has started.

    Not the kernel's for them: these grow with other work on the machine.
    """
    engine = psutil.Process(int((modern.engine.folder / "pid").read_text()))
    times = [process.cpu_times() for process in (engine, *engine.children(recursive=True))]
    return sum(each.user + each.children_user for each in times)


def pack(modern: ModernEngine, image: str, target: str, compression: str, folder: Path) -> float:
    """Makes an image of the same layers, packed in this way; returns the seconds that this took."""
    (folder / "Dockerfile").write_text(f"FROM {image}\n")
    wanted = f"type=image,name={target},compression={compression},force-compression=true,oci-mediatypes=true"
    build = ["buildx", "build", "--builder=default", "--progress=plain", "--provenance=false", f"--output={wanted}"]
    said = docker(modern, *build, str(folder)).text
    found = _PACKED.search(said)
    assert found, said
    return float(found[1])


def measure(image: str, *, rounds: int, folder: Path) -> dict[str, Any]:
    """Packs, pushes and pulls the image."""
    found: dict[str, Any] = {each: {"pull": {store: [] for store in STORES}} for each in COMPRESSIONS}
    with ExitStack() as stack:
        registry = stack.enter_context(running_registry(folder, {}, addresses=("0.0.0.0",)))
        port = registry.rpartition(":")[2]
        (folder / "context").mkdir()
        with modern_engine() as modern:
            give(modern, image)
            for each in COMPRESSIONS:
                say(f"packing with {each}")
                target = f"{modern.engine.gateway}:{port}/bench/{each}:1"
                found[each]["pack_seconds"] = pack(modern, image, target, each, folder / "context")
                size = stored(folder / "storage")
                found[each]["push_seconds"] = docker(modern, "push", target).seconds
                found[each]["bytes"] = stored(folder / "storage") - size
        for number in range(rounds):
            for store, containerd_store in STORES.items():
                for each in COMPRESSIONS if number % 2 else reversed(COMPRESSIONS):
                    # An engine for each: none finds another's layers.
                    with modern_engine(containerd_store=containerd_store) as modern:
                        before = busy(modern)
                        seconds = docker(modern, "pull", f"{modern.engine.gateway}:{port}/bench/{each}:1").seconds
                        processor = busy(modern) - before
                    say(f"{store}, {each}: pulled in {seconds:.1f} s, {processor:.1f} s of a processor")
                    found[each]["pull"][store].append({"seconds": seconds, "processor": processor})
    return found


def markdown(document: Mapping[str, Any]) -> str:
    """The tables."""
    found, here = document["compressions"], document["machine"]

    def row(title: str, *cells: str) -> list[str]:
        return [title, *cells]

    def seconds(samples: Sequence[Mapping[str, float]], key: str) -> str:
        found = [sample[key] for sample in samples]
        return f"{statistics.median(found):.1f} s ({min(found):.1f} to {max(found):.1f})"

    rows = [
        row("bytes at the registry", *(f"{found[each]['bytes'] / 1e6:.1f} MB" for each in COMPRESSIONS)),
        row("to pack all layers", *(f"{found[each]['pack_seconds']:.1f} s" for each in COMPRESSIONS)),
        row("to push them", *(f"{found[each]['push_seconds']:.1f} s" for each in COMPRESSIONS)),
        *(
            row(title.format(store), *(seconds(found[each]["pull"][store], key) for each in COMPRESSIONS))
            for store in STORES
            for key, title in (("seconds", "pull to an empty engine, {}"), ("processor", "of a processor for that, {}"))
        ),
    ]
    of_what = f"{document['image_bytes'] / 1e6:.0f} MB, {here['cores']} cores ({here['cpu']}), {here['kernel']}"
    return f"The image of `{document['image']}`, {of_what}:\n\n{table(['', *COMPRESSIONS], rows)}\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.zstd", description=__doc__)
    parser.add_argument("--rounds", type=int, default=FEWEST_ROUNDS)
    parser.add_argument("--results", type=Path, help="folder for zstd.json and zstd.md")
    parser.add_argument("--image", help="of this machine's engine; default: torch/cpu's base image")
    options = parser.parse_args()
    image = options.image or build(ImageConfig(requirements=None), project_dir=HERE).reference
    signal.signal(signal.SIGTERM, interrupted)
    load = os.getloadavg()[0]
    with ends_in_words(), ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="hvdcloud-bench-"))
        stack.callback(shutil.rmtree, folder)
        found = measure(image, rounds=options.rounds, folder=folder)
    document = {
        "image": image,
        "image_bytes": int(output("docker", "image", "inspect", "--format", "{{.Size}}", image)),
        "machine": {**machine(), "load_before": round(load, 2)},
        "compressions": found,
    }
    publish("zstd", document, markdown(document), folder=options.results, complete=options.rounds >= FEWEST_ROUNDS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
