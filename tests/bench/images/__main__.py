"""`python -m tests.bench.images`: what images cost; see README.md one folder up."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from hvdcloud.config.model import ImageConfig
from hvdcloud.image.plan.steps import plan_image
from tests.bench.images import report
from tests.bench.images.layers import sizes
from tests.bench.measure import output, run
from tests.bench.publish import ends_in_words, publish, say
from tests.bench.workplace import BUILD_SECONDS, HERE, HVDCLOUD
from tests.standins.registry import running_registry
from tests.support.engines import SecondEngine, second_engine

ROWS = ("torch/cpu", "tensorflow/cpu", "torch/cuda")
WARM_BUILDS = 5
BEFORE = "scikit-learn>=1.5,<2\n"
AFTER = BEFORE + "tabulate==0.9.0\n"
TRANSFER_SECONDS = 1800


class Project:
    """A project whose image is `framework/device[/version]`, pushed to a registry of its own."""

    def __init__(self, folder: Path, row: str, registry: str) -> None:
        framework, device, *version = row.split("/")
        self.folder = folder
        self.repository = f"{registry}/bench"
        self.image = {"framework": framework, "device": device, "version": version[0] if version else None}
        folder.mkdir()
        config = {"name": "bench", "image": {**self.image, "repository": self.repository}}
        (folder / "hvdcloud.yaml").write_text(yaml.safe_dump(config))
        self.require(BEFORE)
        self.references: set[str] = set()

    def require(self, requirements: str) -> None:
        (self.folder / "requirements.txt").write_text(requirements)

    def hvdcloud(self, *words: str) -> tuple[float, dict[str, Any]]:
        """Runs a command; returns its seconds and its result."""
        sample = run([HVDCLOUD, *words, "--json"], cwd=self.folder, limit=BUILD_SECONDS)
        result: dict[str, Any] = json.loads(sample.out)["result"]
        self.references.add(result["reference"])
        return sample.seconds, result

    def forget(self) -> None:
        """Removes what the row's build left in the engine, so that the next build is a cold one."""
        plan = plan_image(ImageConfig.model_validate(self.image), project_dir=self.folder)
        for reference in {plan.reference, *(step.reference for step in plan.steps)}:
            output("docker", "image", "rm", reference)


def measure(row: str, *, cold: bool, folder: Path, engine: SecondEngine) -> dict[str, Any]:
    """Builds, pushes and pulls a row's image, before and after its requirements change."""
    with registry_for(engine, folder) as (registry, storage, seen_as):
        project = Project(folder / "project", row, registry)
        try:
            if cold:
                project.forget()
            say(f"{row}: build")
            first, built = project.hvdcloud("build")
            found: dict[str, Any] = {
                "cold_seconds": None if built["cached"] or not cold else first,
                "warm_seconds": [project.hvdcloud("build")[0] for _ in range(WARM_BUILDS)],
                "sizes": sizes(built["reference"]),
            }
            say(f"{row}: push and pull")
            found["push"] = transfers(project, storage)
            found["pull"] = [pull(engine, seen_as, built["reference"])]
            say(f"{row}: requirements change")
            project.require(AFTER)
            seconds, changed = project.hvdcloud("build")
            found["changed_seconds"] = None if changed["cached"] else seconds
            found["push_changed"] = transfers(project, storage)[0]
            found["pull"].append(pull(engine, seen_as, changed["reference"]))
            return found
        finally:
            for reference in project.references:
                output("docker", "image", "rm", f"{project.repository}:{reference.rpartition(':')[2]}")
            # The second one is not shared: its requirements are the benchmark's own.
            if len(project.references) == 2:
                output("docker", "image", "rm", changed["reference"])


@contextmanager
def registry_for(engine: SecondEngine, folder: Path) -> Iterator[tuple[str, Path, str]]:
    """An empty registry; yields its address, where it keeps its blobs, and its address as the second engine sees it."""
    with running_registry(folder, {}, addresses=("127.0.0.1", engine.gateway)) as registry:
        yield registry, folder / "storage", f"{engine.gateway}:{registry.rpartition(':')[2]}"


def transfers(project: Project, storage: Path) -> list[dict[str, float]]:
    """Pushes twice: what has to be sent, and then nothing."""
    found = []
    for _ in range(2):
        before = stored(storage)
        seconds, _ = project.hvdcloud("push")
        found.append({"seconds": seconds, "bytes": stored(storage) - before})
    return found


def stored(storage: Path) -> int:
    """Bytes of the blobs in a registry."""
    return sum(blob.stat().st_size for blob in storage.glob("docker/registry/v2/blobs/*/*/*/data"))


def pull(engine: SecondEngine, registry: str, reference: str) -> float:
    """Seconds until the second engine has the image."""
    image = f"{registry}/bench:{reference.rpartition(':')[2]}"
    return run(["docker", "--host", engine.docker_host, "pull", image], limit=TRANSFER_SECONDS).seconds


def interrupted(number: int, _frame: object) -> None:
    """SIGTERM ends the benchmark as Ctrl-C does: what it made goes away."""
    raise KeyboardInterrupt(number)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.images", description=__doc__)
    parser.add_argument("--rows", nargs="+", default=ROWS, metavar="FRAMEWORK/DEVICE[/VERSION]", help=" ".join(ROWS))
    parser.add_argument("--cold", action="store_true", help="remove the rows' images first, compile Horovod again")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="folder for images.json and images.md")
    return parser.parse_args(argv)


def main() -> int:
    options = arguments()
    signal.signal(signal.SIGTERM, interrupted)
    load = os.getloadavg()[0]
    found: dict[str, Any] = {}
    with ends_in_words():
        for row in options.rows:
            with ExitStack() as stack:
                folder = Path(tempfile.mkdtemp(prefix="hvdcloud-bench-"))
                stack.callback(shutil.rmtree, folder)
                # An engine for each row: none of them finds another's layers there.
                engine = stack.enter_context(second_engine())
                found[row] = measure(row, cold=options.cold, folder=folder, engine=engine)
    document = report.document(found, load=load)
    publish("images", document, report.markdown(document), folder=options.results, complete=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
