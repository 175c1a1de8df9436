"""`python -m tests.bench.first_launch`: from nothing to trained (see README.md). Needs root and docker-registry.

What is published comes from a registry on this machine, and the nodes are on a second engine, which has no image and no
network but to that registry. Compiled, it is measured on the engine that answers, which has to be empty for that.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from hvdcloud.image.build import published
from hvdcloud.image.engine_reports import ignore
from hvdcloud.image.plan.versions import PYTHON_VERSION
from tests.bench.measure import BenchError, Sample, output, run
from tests.bench.publish import REPOSITORY, ends_in_words, say
from tests.standins.registry import running_registry
from tests.support.engines import second_engine
from tests.support.harness import HVDCLOUD
from tools import published as tool

ROW = "torch-2.13.0-cpu"


def launched(project: Path, *before: str, **environ: str) -> Sample:
    """The first launch of the template's project; `before`: words of a program that runs hvdcloud."""
    environ["HVDCLOUD_STATE_DIR"] = str(project.parent / "state")
    sample = run([*before, *HVDCLOUD, "launch"], cwd=project, env=environ, limit=3600)
    if not [file for file in (project / "checkpoints").rglob("*") if file.is_file()]:
        raise BenchError(f"the launch left no checkpoint:\n{sample.text[-2000:]}")
    return sample


def compiled(project: Path) -> Sample:
    """Where nothing is published, on the engine that answers."""
    reference = tool.plan_of(ROW).steps[0].reference
    if output("docker", "images", "--quiet", reference):
        raise BenchError(f"the engine has {reference}: make clean-images and docker builder prune, or another engine")
    return launched(project, HVDCLOUD_PUBLISHED="0")


def from_published(project: Path) -> Sample:
    """With the row's images at a registry, on an engine that has nothing; what it requires is downloaded before."""
    folder, copy, wheels = project.parent, project.parent / "copy", project.parent / "wheels"
    options = ["--only-binary=:all:", f"--python-version={PYTHON_VERSION}", f"--dest={wheels}"]
    options += [f"--platform={name}_x86_64" for name in ("manylinux2014", "manylinux_2_28")]
    run([sys.executable, "-m", "pip", "download", "--quiet", *options, "-r", project / "requirements.txt"])
    # hvdcloud as it would be installed, with a file of its own that says what is published.
    for part in ("hvdcloud", "dockerfiles"):
        shutil.copytree(REPOSITORY / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    with (
        second_engine(bridge=True) as engine,
        running_registry(folder, {}, addresses=("127.0.0.1", engine.gateway)) as at,
    ):
        say(f"publishing {ROW} at {at}")
        digests = tool.publish(tool.plan_of(ROW), f"{at}/hvdcloud", progress=ignore)
        (copy / "dockerfiles" / published.FILE).write_text(tool.lines(digests))
        say("launching on an engine that has nothing")
        environ = {"DOCKER_HOST": engine.docker_host, "PYTHONPATH": str(copy)}
        environ |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
        environ[published.PUBLISHED_VARIABLE] = f"{engine.gateway}:{at.rpartition(':')[2]}/hvdcloud"
        # The ports of its nodes are on its network.
        return launched(project, "nsenter", f"--net=/run/netns/{engine.folder.name}", **environ)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.first_launch", description=__doc__)
    parser.add_argument("--compiled", action="store_true", help="compile, on the engine that answers")
    measured = compiled if parser.parse_args().compiled else from_published
    load = os.getloadavg()[0]
    temporary = tempfile.TemporaryDirectory(prefix="hvdcloud-bench-", ignore_cleanup_errors=True)
    with ends_in_words(), temporary as folder:
        project = Path(folder, "digits")
        run([*HVDCLOUD, "init", project])
        sample = measured(project)
    say(sample.text)
    sys.stdout.write(
        f"{measured.__name__} {ROW}: {sample.seconds:.1f} s on {os.cpu_count()} cores at load {load:.1f}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
