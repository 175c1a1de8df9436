"""`python -m tests.bench.own_machines`: machines that are reached by SSH. An image sent to two, and `up` on them.

The machines are containers on this engine, each with an engine and an sshd of its own. An image goes to two empty ones
at once, and then one with one more requirement, against `docker save | ssh docker load`; then `up` on two that have it,
against `up` on this machine; then with one more requirement.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from hvdcloud import engine
from hvdcloud.config.ssh_hosts import SshHostConfig
from hvdcloud.providers.ssh import images
from hvdcloud.providers.ssh.hosts import Hosts
from hvdcloud.units import counted
from tests.bench.measure import run
from tests.bench.publish import ends_in_words, publish, say
from tests.bench.workplace import HERE, HVDCLOUD
from tests.support.ssh_hosts import SshHost, SshHosts, ssh_hosts

FEWEST_IMAGE_RUNS, FEWEST_UP_RUNS = 3, 5
"""Fewer do not replace the results that are committed."""
NAMES = ("gpu1", "gpu2")
PLACES = ("local", "ssh")
REQUIREMENTS, ADDED = "scikit-learn\n", "tqdm\n"
WAYS = {"by_hand": "`docker save` \\| `ssh docker load`", "hvdcloud": "hvdcloud"}
PARTS = {"first": "to machines that have no image", "changed": "after one more requirement"}


class Cluster:
    """A project of two nodes with one provider.

    Args:
        environment: of its commands.
    """

    def __init__(self, folder: Path, provider: str, environment: Mapping[str, str]) -> None:
        self.folder, self._environment = folder / provider, environment
        self.folder.mkdir()
        self.requires(REQUIREMENTS)
        hosts = {"ssh": {"hosts": [*NAMES]}} if provider == "ssh" else {}
        config = {"name": f"bench-own-{provider}", "provider": provider, "nodes": 2, **hosts}
        (self.folder / "hvdcloud.yaml").write_text(yaml.safe_dump(config))

    def requires(self, text: str) -> None:
        """Write its requirements."""
        (self.folder / "requirements.txt").write_text(text)

    def hvdcloud(self, *words: str) -> Any:
        """Run a command; returns a Sample."""
        return run([HVDCLOUD, *words], cwd=self.folder, env=self._environment, limit=900)

    def build(self) -> str:
        """Have its image on this machine's engine; returns its reference."""
        return str(json.loads(self.hvdcloud("build", "--json").out)["result"]["reference"])

    def life(self) -> float:
        """Seconds that `up` takes; `down` follows."""
        try:
            return float(self.hvdcloud("up", "--yes").seconds)
        finally:
            self.hvdcloud("down", "--force")


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=("image", "up"), help="measure this part, and keep the other results")
    parser.add_argument("--runs", type=int, help=f"default: {FEWEST_IMAGE_RUNS} of the image, {FEWEST_UP_RUNS} of up")
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    parts = (arguments.only,) if arguments.only else ("image", "up")
    runs = {"image": arguments.runs or FEWEST_IMAGE_RUNS, "up": arguments.runs or FEWEST_UP_RUNS}
    complete = runs["image"] >= FEWEST_IMAGE_RUNS and runs["up"] >= FEWEST_UP_RUNS
    before = (arguments.results or HERE / "results") / "own_machines.json"
    document = json.loads(before.read_text()) if arguments.only and before.exists() else {}
    with ends_in_words(), ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="hvd-"))
        stack.callback(shutil.rmtree, folder)
        (folder / "user").mkdir()
        here = stack.enter_context(contextlib.closing(engine.connect(timeout=images.SILENCE_SECONDS)))
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        environment = {"HVDCLOUD_STATE_DIR": str(folder / "state")}
        local = Cluster(folder, "local", environment)
        image = local.build()
        hosts = stack.enter_context(ssh_hosts(folder / "user", *NAMES))
        # For connections of this process.
        os.environ["PATH"] = hosts.path
        if "image" in parts:
            local.requires(REQUIREMENTS + ADDED)
            images_of = {"first": image, "changed": local.build()}
            local.requires(REQUIREMENTS)
            document |= sendings(here, hosts, images_of, folder / "cache" / "hvdcloud", runs["image"])
        if "up" in parts:
            ssh = Cluster(folder, "ssh", {**environment, "PATH": hosts.path})
            document |= rounds({"local": local, "ssh": ssh}, runs["up"])
            document["round_trip_seconds"] = [ssh_to(NAMES[0], "true") for _ in range(5)]
            document |= changed(here, hosts, ssh, image)
    publish("own_machines", document, tables(document), folder=arguments.results, complete=complete)


# --- an image --------------------------------------------------------------------------------------------------------


def sendings(here: Any, hosts: SshHosts, images_of: Mapping[str, str], cache: Path, runs: int) -> dict[str, Any]:
    """Seconds until both machines have an image, in each way; the order turns from round to round.

    Args:
        images_of: what is sent in each part; for the second, the machines have the first one's.
        cache: where the registry of this machine keeps layers; as empty as the machines are before the first.
    """
    ways: dict[str, Callable[[str], object]] = {"by_hand": saved_and_loaded, "hvdcloud": sent}
    found: dict[str, list[float]] = {f"{part}_{way}_seconds": [] for part in PARTS for way in WAYS}
    for number in range(runs):
        for way in WAYS if number % 2 else reversed(WAYS):
            empty(hosts)
            shutil.rmtree(cache, ignore_errors=True)
            for part, image in images_of.items():
                began = time.monotonic()
                ways[way](image)
                found[f"{part}_{way}_seconds"].append(time.monotonic() - began)
                say(f"image, round {number + 1}/{runs}: {part}, {way}: {found[f'{part}_{way}_seconds'][-1]:.1f} s")
                for host in hosts.hosts:
                    assert image in host.docker("images", "--format", "{{.Repository}}:{{.Tag}}")
    return {**found, "image_bytes": here.api.inspect_image(images_of["first"])["Size"]}


def saved_and_loaded(image: str) -> None:
    """As a user does it by hand, one command for each machine, both at once."""
    started = [subprocess.Popen(["sh", "-c", f"docker save {image} | ssh {name} docker load"]) for name in NAMES]
    for process in started:
        assert process.wait(timeout=images.SILENCE_SECONDS) == 0


def sent(image: str) -> None:
    """As `up` does it: the logins count."""
    with contextlib.closing(Hosts([SshHostConfig(host=name) for name in NAMES])) as machines:
        images.bring(image, machines, machines.all, on_progress=lambda _: None)


def empty(hosts: SshHosts) -> None:
    """Have the machines without any image, and wait until their disks are."""
    for host in hosts.hosts:
        host.run("sh", "-c", "docker images -q | sort -u | xargs -r docker rmi -f; sync")


# --- up --------------------------------------------------------------------------------------------------------------


def rounds(clusters: Mapping[str, Cluster], runs: int) -> dict[str, list[float]]:
    """Seconds of `up` by provider; the first round sends the image, and each begins with another one."""
    found: dict[str, list[float]] = {name: [] for name in PLACES}
    for number in range(runs + 1):
        for name in PLACES if number % 2 else reversed(PLACES):
            seconds = clusters[name].life()
            say(f"{f'round {number}/{runs}' if number else 'warm-up'}: {name}: {seconds:.2f} s")
            if number:
                found[name].append(seconds)
    return {f"{name}_seconds": values for name, values in found.items()}


def ssh_to(name: str, command: str) -> float:
    """Seconds of a connection, a login and a program."""
    return float(run(["ssh", name, command]).seconds)


def changed(here: Any, hosts: SshHosts, cluster: Cluster, image: str) -> dict[str, Any]:
    """What reaches the machines with the next image, and what is new in it."""
    before = set(here.api.inspect_image(image)["RootFS"]["Layers"])
    cluster.requires(REQUIREMENTS + ADDED)
    new = cluster.build()
    found = [layer for layer in here.api.inspect_image(new)["RootFS"]["Layers"] if layer not in before]
    counts = {host.name: received(host) for host in hosts.hosts}
    try:
        seconds = cluster.hvdcloud("up", "--yes").seconds
        came = {host.name: received(host) - counts[host.name] for host in hosts.hosts}
    finally:
        cluster.hvdcloud("down", "--force")
    # The newest first; steps without a size are no layers.
    sizes = [int(each["Size"]) for each in here.api.history(new) if each["Size"]]
    return {
        "changed_layers": len(found),
        "changed_layers_bytes": sum(sizes[: len(found)]),
        "changed_image_bytes": sum(sizes),
        "changed_up_seconds": seconds,
        "changed_wire_bytes": came,
    }


def received(host: SshHost) -> int:
    """Bytes that the machine's network interface has received."""
    return int(host.run("cat", "/sys/class/net/eth0/statistics/rx_bytes"))


# --- what is said ----------------------------------------------------------------------------------------------------


def tables(document: Mapping[str, Any]) -> str:
    """Markdown; of the parts that were measured."""
    lines = ["# Machines that are reached by SSH", ""]
    if "first_hvdcloud_seconds" in document:
        lines += image_table(document)
    if "ssh_seconds" in document:
        lines += up_table(document)
    return "\n".join(lines)


def image_table(document: Mapping[str, Any]) -> list[str]:
    """How long an image takes."""
    times = {(part, way): document[f"{part}_{way}_seconds"] for part in PARTS for way in WAYS}
    median = {key: statistics.median(values) for key, values in times.items()}
    return [
        f"An image of {document['image_bytes'] / 1e9:.2f} GB to two machines at once; "
        f"{counted(len(times['first', 'hvdcloud']), 'round')}, medians. All share the same processors.",
        "",
        "| | | seconds | range | of by hand |",
        "| --- | --- | ---: | ---: | ---: |",
        *(
            f"| {PARTS[part]} | {WAYS[way]} | {median[part, way]:.1f} | {min(values):.1f} to {max(values):.1f} "
            f"| {median[part, way] / median[part, 'by_hand']:.2f} |"
            for (part, way), values in times.items()
        ),
        "",
    ]


def up_table(document: Mapping[str, Any]) -> list[str]:
    """How long `up` takes."""
    local, ssh = (statistics.median(document[f"{name}_seconds"]) for name in PLACES)
    wire = max(document["changed_wire_bytes"].values())
    return [
        f"`up` of two nodes, the image on both machines; {counted(len(document['local_seconds']), 'round')}, medians. "
        f"`ssh gpu1 true` takes {statistics.median(document['round_trip_seconds']):.2f} s.",
        "",
        "| | seconds | range | of local |",
        "| --- | ---: | ---: | ---: |",
        *(
            f"| `up`, provider {name} | {value:.2f} | {min(document[f'{name}_seconds']):.2f} to "
            f"{max(document[f'{name}_seconds']):.2f} | {value / local:.2f} |"
            for name, value in (("local", local), ("ssh", ssh))
        ),
        "",
        f"With one more requirement, {counted(document['changed_layers'], 'layer')} of "
        f"{document['changed_layers_bytes'] / 1e6:.1f} MB is new in an image of "
        f"{document['changed_image_bytes'] / 1e6:.0f} MB. `up` took {document['changed_up_seconds']:.1f} s, and "
        f"{wire / 1e6:.1f} MB reached each machine.",
        "",
    ]


if __name__ == "__main__":
    main()
