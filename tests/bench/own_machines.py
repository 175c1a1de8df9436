"""`python -m tests.bench.own_machines`: `up` on two machines that are reached by SSH, beside `up` on this one.

The machines are containers on this engine, each with an engine and an sshd of its own. They have the image before the
clock starts. Then a requirement is added, and the bytes are counted that reach each machine during the next `up`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import yaml

from hvdcloud import engine
from hvdcloud.units import counted
from tests.bench.measure import run
from tests.bench.publish import publish, say
from tests.bench.workplace import HVDCLOUD
from tests.support.ssh_hosts import SshHost, SshHosts, hosts_with_image

FEWEST_RUNS = 5
"""Fewer do not replace the results that are committed."""
HOSTS = ("gpu1", "gpu2")
PLACES = ("local", "ssh")
REQUIREMENTS, ADDED = "scikit-learn\n", "tqdm\n"


class Cluster:
    """A project of two nodes with one provider.

    Args:
        environment: of its commands.
    """

    def __init__(self, folder: Path, provider: str, environment: Mapping[str, str]) -> None:
        self.folder, self._environment = folder / provider, environment
        self.folder.mkdir()
        self.requires(REQUIREMENTS)
        hosts = {"ssh": {"hosts": [*HOSTS]}} if provider == "ssh" else {}
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
        return str(json.loads(self.hvdcloud("build", "--json").out)["result"]["image"])

    def life(self) -> float:
        """Seconds that `up` takes; `down` follows."""
        try:
            return float(self.hvdcloud("up", "--yes").seconds)
        finally:
            self.hvdcloud("down", "--force")


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=FEWEST_RUNS)
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="hvd-"))
        stack.callback(shutil.rmtree, folder)
        (folder / "user").mkdir()
        here = stack.enter_context(closing(engine.connect(timeout=600)))
        environment = {"HVDCLOUD_STATE_DIR": str(folder / "state")}
        local = Cluster(folder, "local", environment)
        image = local.build()
        hosts = stack.enter_context(hosts_with_image(folder / "user", image, *HOSTS))
        ssh = Cluster(folder, "ssh", {**environment, "PATH": hosts.path})
        document = {
            **rounds({"local": local, "ssh": ssh}, arguments.runs),
            "round_trip_seconds": [round_trip(hosts, environment) for _ in range(5)],
            **changed(here, hosts, ssh, image),
        }
    publish(
        "own_machines", document, tables(document), folder=arguments.results, complete=arguments.runs >= FEWEST_RUNS
    )


def rounds(clusters: Mapping[str, Cluster], runs: int) -> dict[str, list[float]]:
    """Seconds of `up` by provider; the first round only warms up, and each begins with another one."""
    found: dict[str, list[float]] = {name: [] for name in PLACES}
    for number in range(runs + 1):
        for name in PLACES if number % 2 else reversed(PLACES):
            seconds = clusters[name].life()
            say(f"{f'round {number}/{runs}' if number else 'warm-up'}: {name}: {seconds:.2f} s")
            if number:
                found[name].append(seconds)
    return {f"{name}_seconds": values for name, values in found.items()}


def round_trip(hosts: SshHosts, environment: Mapping[str, str]) -> float:
    """Seconds of `ssh gpu1 true`: a connection, a login and a program."""
    return float(run([hosts.folder / "bin" / "ssh", HOSTS[0], "true"], env={**os.environ, **environment}).seconds)


def changed(here: Any, hosts: SshHosts, cluster: Cluster, image: str) -> dict[str, Any]:
    """What reaches the hosts with the next image, and what is new in it."""
    before = set(here.api.inspect_image(image)["RootFS"]["Layers"])
    cluster.requires(REQUIREMENTS + ADDED)
    new = cluster.build()
    say(f"changed: {new}")
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


def tables(document: dict[str, Any]) -> str:
    """Markdown."""
    local, ssh = (statistics.median(document[f"{name}_seconds"]) for name in PLACES)
    wire = max(document["changed_wire_bytes"].values())
    return "\n".join(
        [
            "# Machines that are reached by SSH",
            "",
            f"Two nodes, the image on both; {len(document['local_seconds'])} rounds, medians. `ssh gpu1 true` takes "
            f"{statistics.median(document['round_trip_seconds']):.2f} s.",
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
            f"{document['changed_layers_bytes'] / 1e6:.0f} MB is new in an image of "
            f"{document['changed_image_bytes'] / 1e6:.0f} MB. `up` took {document['changed_up_seconds']:.1f} s, and "
            f"{wire / 1e6:.0f} MB reached each machine.",
            "",
        ]
    )


if __name__ == "__main__":
    main()
