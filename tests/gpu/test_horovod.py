"""Horovod on a real GPU: compiled by the image's own recipe against the installed torch, and timed.

It needs a GPU with its driver, a CUDA toolkit (CUDA_HOME, else /usr/local/cuda), g++, and a Python with a CUDA torch:
TORCH_PYTHON, else python3. Without a network pip takes its wheels, and Horovod's source, from PIP_FIND_LINKS.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hvdcloud.image.plan.context import dockerfiles
from hvdcloud.image.plan.versions import find

THROUGHPUT = Path(__file__).with_name("throughput.py")
FACTS = """
import json, os, torch
print(json.dumps({
    "capability": ".".join(map(str, torch.cuda.get_device_capability())),
    "packages": os.path.dirname(os.path.dirname(torch.__file__)),
}))
"""
# Two cores need a quarter of an hour to compile Horovod.
pytestmark = pytest.mark.timeout(3600)


class Machine(NamedTuple):
    """A Python with Horovod, and what its torch says of the GPU."""

    python: Path
    environment: dict[str, str]


def run(*command: str | Path, **options: Any) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options,
    )  # fmt: skip
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout[-4000:]}"
    return str(done.stdout)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """This machine, with Horovod compiled for its GPU into a virtual environment beside its torch."""
    if shutil.which("nvidia-smi") is None:
        pytest.skip("no GPU is available: there is no nvidia-smi")
    torch_python = os.environ.get("TORCH_PYTHON", "python3")
    asked = subprocess.run([torch_python, "-c", FACTS], capture_output=True, text=True, check=False)
    if asked.returncode != 0:
        pytest.fail(f"{torch_python} has no torch that sees a GPU; set TORCH_PYTHON:\n{asked.stderr}")
    facts = json.loads(asked.stdout.splitlines()[-1])
    folder = tmp_path_factory.mktemp("horovod")
    venv, work = folder / "venv", folder / "work"
    work.mkdir()
    run(torch_python, "-m", "venv", "--system-site-packages", venv)
    # Where TORCH_PYTHON is in a virtual environment itself, --system-site-packages leads past it.
    (site,) = venv.glob("lib/python3.*/site-packages")
    (site / "torch.pth").write_text(f"{facts['packages']}\n")
    python, locks = venv / "bin" / "python", dockerfiles() / "locks"
    run(python, "-m", "pip", "install", "-q", "-r", locks / "tools.txt", "-r", locks / "horovod.txt")
    row = find("torch", "cuda")
    environment = {
        **os.environ,
        "PATH": f"{venv / 'bin'}:{os.environ['PATH']}",
        "CAPABILITIES": facts["capability"],
        "HOROVOD_VERSION": row.horovod,
        "HOROVOD_SHA256": row.horovod_sha256,
        "PATCHES": " ".join(row.patches),
        "PATCHES_DIR": str(dockerfiles() / "patches"),
    }
    if shutil.which("mpicxx") is None:
        environment["HOROVOD_WITHOUT_MPI"] = "1"
    run("sh", dockerfiles() / "build" / "horovod.sh", "torch", python, cwd=work, env=environment)
    (wheel,) = (work / "dist").glob("horovod-*.whl")
    # A Horovod beside that torch would pass for this one.
    run(python, "-m", "pip", "install", "-q", "--no-deps", "--ignore-installed", wheel)
    return Machine(python, environment)


def horovodrun(machine: Machine, *command: str | Path, **more: str) -> str:
    """One rank on this machine's GPU."""
    return run(
        machine.python.with_name("horovodrun"),
        *("--gloo", "-np", "1", "-H", "localhost:1", "--network-interface", "lo", "--disable-cache"),
        *command,
        env={**machine.environment, **more},
    )


def throughput(output: str) -> dict[str, Any]:
    """The JSON that the program prints; horovodrun puts the rank's mark before it."""
    lines = re.findall(r"(\{.*\"images_per_second\".*\})", output)
    assert lines, output[-4000:]
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def test_one_rank_all_reduces_on_the_gpu_with_nccl(machine: Machine) -> None:
    assert "[X] NCCL" in run(machine.python.with_name("horovodrun"), "--check-build", env=machine.environment)
    said = horovodrun(machine, machine.python, THROUGHPUT, "cuda", "horovod", NCCL_DEBUG="INFO")
    assert "NCCL INFO" in said
    assert "Init COMPLETE" in said


def test_throughput_with_and_without_horovod(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    alone = throughput(run(machine.python, THROUGHPUT, "cuda", env=machine.environment))
    reduced = throughput(horovodrun(machine, machine.python, THROUGHPUT, "cuda", "horovod"))
    share = reduced["images_per_second"] / alone["images_per_second"]
    result = {
        **{name: alone[name] for name in ("gpu", "torch", "cuda")},
        "images_per_second": {"torch": alone["images_per_second"], "horovod": reduced["images_per_second"]},
        "share": round(share, 3),
    }
    with capsys.disabled():
        sys.stdout.write(f"\n{json.dumps(result)}\n")
    assert share > 0.8, "one rank has no other to wait for: Horovod may cost it a little, no more"
