"""`python -m tests.bench.first_launch`: from nothing to trained (see README.md). Needs root and docker-registry.

What is published comes from a registry on this machine, and the nodes are on a second engine, which has no image and no
network but to that registry. Compiled, it is measured on the engine that answers, which has to be empty for that.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from hvdcloud.image.build import published
from hvdcloud.image.engine_reports import ignore
from hvdcloud.image.plan.versions import PYTHON_VERSION
from tests.bench.measure import BenchError, Sample, output, run
from tests.bench.publish import REPOSITORY, ends_in_words, publish, say, table
from tests.standins.registry import running_registry
from tests.support.engines import second_engine
from tests.support.harness import HVDCLOUD
from tools import published as tool

ROW = "torch-2.13.0-cpu"
LIMIT_SECONDS = 3600


def from_published(folder: Path) -> Sample:
    """The first launch of the template, whose requirements are downloaded before, on an engine that has nothing."""
    project, copy, wheels = _project(folder), folder / "copy", folder / "wheels"
    options = ["--only-binary=:all:", f"--python-version={PYTHON_VERSION}", f"--dest={wheels}"]
    options += [f"--platform={name}_x86_64" for name in ("manylinux2014", "manylinux_2_28")]
    run([sys.executable, "-m", "pip", "download", "--quiet", *options, "-r", project / "requirements.txt"])
    # hvdcloud as it would be installed, with a file of its own that says what is published.
    for part in ("hvdcloud", "dockerfiles"):
        shutil.copytree(REPOSITORY / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(second_engine(bridge=True))
        addresses = ("127.0.0.1", engine.gateway)
        port = stack.enter_context(running_registry(folder, {}, addresses=addresses)).rpartition(":")[2]
        say(f"publishing {ROW} at 127.0.0.1:{port}")
        digests = tool.publish(ROW, f"127.0.0.1:{port}/hvdcloud", known={}, progress=ignore)
        (copy / "dockerfiles" / published.FILE).write_text(tool.lines(digests))
        say("launching on an engine that has nothing")
        environ = {
            "DOCKER_HOST": engine.docker_host,
            published.PUBLISHED_VARIABLE: f"{engine.gateway}:{port}/hvdcloud",
            "PYTHONPATH": str(copy),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(wheels),
        }
        # The ports of its nodes are on its network.
        inside = ["nsenter", f"--net=/run/netns/{engine.folder.name}"]
        return _launched(project, environ, before=inside)


def compiled(folder: Path) -> Sample:
    """The same where nothing is published, on the engine that answers."""
    reference = tool.steps_of(ROW)[0].reference
    if output("docker", "images", "--quiet", reference):
        raise BenchError(f"the engine has {reference}: make clean-images and docker builder prune, or another engine")
    return _launched(_project(folder), {published.PUBLISHED_VARIABLE: "0"})


def _project(folder: Path) -> Path:
    """The template, as `init` writes it."""
    run([*HVDCLOUD, "init", folder / "digits"], cwd=folder)
    return folder / "digits"


def _launched(project: Path, environ: Mapping[str, str], *, before: Sequence[str] = ()) -> Sample:
    environ = {"HVDCLOUD_STATE_DIR": str(project.parent / "state"), **environ}
    sample = run([*before, *HVDCLOUD, "launch"], cwd=project, env=environ, limit=LIMIT_SECONDS)
    if not [file for file in (project / "checkpoints").rglob("*") if file.is_file()]:
        raise BenchError(f"the launch left no checkpoint:\n{sample.text[-2000:]}")
    return sample


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.first_launch", description=__doc__)
    parser.add_argument("--compiled", action="store_true", help="compile, on the engine that answers")
    parser.add_argument("--results", type=Path, help="folder for what was found")
    options = parser.parse_args()
    load, way = os.getloadavg()[0], "compiled" if options.compiled else "published"
    temporary = tempfile.TemporaryDirectory(prefix="hvdcloud-bench-", ignore_cleanup_errors=True)
    with ends_in_words(), temporary as folder:
        sample = compiled(Path(folder)) if options.compiled else from_published(Path(folder))
    document = {"load": load, "cpus": os.cpu_count(), "seconds": sample.seconds, "said": sample.text.splitlines()}
    rows = table(["from nothing to trained, two nodes", "seconds"], [[f"{way}, {ROW}", f"{sample.seconds:.1f}"]])
    publish(f"first-launch-{way}", document, f"{rows}\n", folder=options.results, complete=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
