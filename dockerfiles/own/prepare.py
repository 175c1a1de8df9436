"""Makes what an image that is not ours lacks to be a node, in a copy of it: prepare.py FRAMEWORK DEVICE

Runs under the image's own Python. Afterwards /opt/hvdcloud holds the node program's Python (a virtual environment of
the image's) and node.json, which says what has to be installed beside it; /opt/horovod holds Horovod, if a run needs it
and the image had none. With the FRAMEWORK `any` it need not have one.

HOROVOD_VERSION  of the source package that is compiled; not set: a run needs no Horovod
HOROVOD_SHA256   of it
HOROVOD_PATCHES  versions of the framework, each with the patches that Horovod needs from there on: "2.1:a 2.9:a,b"
"""

# Words for the build's output.
# ruff: noqa: T201

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

OWN = Path("/opt/own")
LOCKS = OWN / "locks"
TOOLS = Path("/opt/tools")
HOROVOD = Path("/opt/horovod")
RESULT = Path("/opt/hvdcloud")
SYSTEM_PYTHON = "/usr"
# What a node's system needs: program, Debian's package.
NEEDED = (
    ("/usr/sbin/sshd", "openssh-server"),
    ("ssh", "openssh-client"),
    ("ip", "iproute2"),
    ("/etc/ssl/certs/ca-certificates.crt", "ca-certificates"),
)
OPEN_MPI = (("mpirun", "openmpi-bin"),)
COMPILERS = (("g++", "g++"), ("make", "make"), ("patch", "patch"))
# Printed as JSON by the image's Python: a framework may end the process that imports it.
FACTS = {
    "torch": """
import torch
flags = getattr(torch._C, "_cuda_getArchFlags", lambda: "")() or ""
facts = {"version": torch.__version__, "cuda": torch.version.cuda or "", "capabilities": flags.split()}
""",
    "tensorflow": """
import sys, tensorflow
build = tensorflow.sysconfig.get_build_info()
keras = sys.modules[tensorflow.keras.Model.__module__.partition(".")[0]].__version__
facts = {"version": tensorflow.__version__, "cuda": build.get("cuda_version") or "", "keras": keras,
         "capabilities": list(build.get("cuda_compute_capabilities") or [])}
""",
}


def refuse(cause: str, command: str) -> NoReturn:
    """Ends the build; hvdcloud shows these two lines as its error."""
    sys.stderr.write(f"hvdcloud: refused: {cause}\nhvdcloud: next: {command}\n")
    sys.exit(3)


def run(*command: str | Path, **environment: str) -> None:
    """Runs a command whose failure is its own explanation."""
    print("+", *command, flush=True)
    done = subprocess.run([str(word) for word in command], env={**os.environ, **environment}, check=False)
    if done.returncode != 0:
        sys.exit(f"{command[0]} ended with {done.returncode}")


def answer(code: str, *, python: str = sys.executable) -> tuple[str, str]:
    """The last line that a piece of Python prints, and the last one of what it complains about if it fails."""
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return "", (done.stderr.strip().splitlines() or [f"Python ended with {done.returncode}"])[-1]
    return (done.stdout.strip().splitlines() or [""])[-1], ""


# --- what the image has -------------------------------------------------------------------------------------------


def framework_facts(framework: str, device: str) -> dict[str, Any]:
    """Its version, its CUDA ("" without) and the architectures that it holds code for."""
    line, complaint = answer(FACTS[framework] + "import json; print(json.dumps(facts))")
    if complaint:
        refuse(
            f"image.framework is {framework}, but {sys.executable} can't import it: {complaint}",
            f"install {framework} in the image, or take another image.base or image.framework",
        )
    facts: dict[str, Any] = json.loads(line)
    if device == "cuda" and not facts["cuda"]:
        refuse(
            f"image.device is cuda, but its {framework} {facts['version']} is built without CUDA",
            "set image.base to an image with CUDA, or image.device: cpu",
        )
    # Without Horovod, any Keras will do.
    if "HOROVOD_VERSION" in os.environ and facts.get("keras", "").startswith("3"):
        refuse(
            f"its {framework} {facts['version']} comes with Keras {facts['keras']}, with which Horovod's optimizer "
            "does not average gradients: every rank would train a model of its own",
            "install tf-keras of the same version in the image and set ENV TF_USE_LEGACY_KERAS=1 there",
        )
    return facts


def horovod_version(framework: str, device: str) -> str:
    """Of the Horovod that the image has; "" if it has none."""
    if importlib.util.find_spec("horovod") is None:
        return ""
    code = f"import horovod, horovod.{framework} as hvd; print(horovod.__version__, int(hvd.nccl_built()))"
    found, complaint = answer(code)
    command = "fix it in the image, or take it out: then hvdcloud compiles one"
    if complaint:
        refuse(f"its Horovod does not work with its {framework}: {complaint}", command)
    version, nccl = found.split()
    if device == "cuda" and nccl == "0":
        refuse(f"image.device is cuda, but its Horovod {version} is built without NCCL", command)
    return version


def missing(needed: Iterable[tuple[str, str]]) -> list[str]:
    """Packages whose program or file is not there."""
    return [package for name, package in needed if not (Path(name).exists() if "/" in name else shutil.which(name))]


def compiler_packages() -> list[str]:
    """Debian's packages that compiling Horovod needs."""
    packages = []
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        if sys.base_prefix != SYSTEM_PYTHON:
            refuse(
                f"it has no Horovod, and compiling one needs Python's headers, which {sys.executable} lacks",
                f"add them to the image: {sysconfig.get_path('include')}/Python.h",
            )
        packages.append(f"python{sys.version_info[0]}.{sys.version_info[1]}-dev")
    mpirun = Path(shutil.which("mpirun") or "/usr/bin/mpirun")
    if mpirun.parent == Path("/usr/bin"):
        # openmpi-bin alone has an mpicxx without headers.
        packages.append("libopenmpi-dev")
    elif not mpirun.with_name("mpicxx").exists():
        refuse(
            f"it has no Horovod, and compiling one needs the mpicxx that belongs to {mpirun}",
            "add it to the image, or start from one that has Horovod",
        )
    return packages


def toolkit() -> Path:
    """The CUDA toolkit of the image."""
    nvcc = shutil.which("nvcc")
    folders = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda", str(Path(nvcc).parent.parent) if nvcc else ""]
    for folder in folders:
        if folder and Path(folder, "bin/nvcc").is_file():
            return Path(folder)
    refuse(
        "it has no Horovod, and compiling one for image.device cuda needs the CUDA toolkit, of which there is no nvcc",
        "set image.base to its -devel variant, or to an image that has Horovod",
    )


def capabilities(architectures: Iterable[str]) -> str:
    """Compute capabilities of architectures such as sm_75 and sm_90a: `7.5 9.0`."""
    numbers = {int(found[1]) for each in architectures if (found := re.match(r"sm_(\d+)", each))}
    return " ".join(f"{each // 10}.{each % 10}" for each in sorted(numbers))


# --- what it gets -------------------------------------------------------------------------------------------------


def install_packages(packages: Sequence[str]) -> None:
    """Debian's packages; a source of packages that is no longer there does not matter."""
    if not packages:
        return
    subprocess.run(["apt-get", "update", "-q", "-o", "Acquire::Retries=3"], check=False)
    run(
        "apt-get", "install", "-y", "-q", "-o", "Dir::Cache::Archives=/mnt", "--no-install-recommends", *packages,
        DEBIAN_FRONTEND="noninteractive",
    )  # fmt: skip


def tool(project: str) -> Path:
    """A lock with only this project of the tools' lock."""
    entries = re.split(r"\n(?=\S)", (LOCKS / "tools.txt").read_text())
    path = LOCKS / f"{project}.txt"
    path.write_text(next(entry for entry in entries if entry.startswith(f"{project}==")))
    return path


def pip_to_start_with() -> list[str]:
    """The image's own pip, the one that its Python could install, or Debian's."""
    if not answer("import pip")[1]:
        return [sys.executable, "-m", "pip"]
    spec = importlib.util.find_spec("ensurepip")
    folders = [Path("/usr/share/python-wheels")]
    if spec is not None and spec.origin:
        folders.insert(0, Path(spec.origin).parent / "_bundled")
    if not any(wheels(folder) for folder in folders):
        # pip of Ubuntu 22.04 needs what Debian's Python 3.10 has as a package of its own.
        install_packages(["python3-pip-whl", *(["python3-distutils"] if sys.version_info < (3, 11) else [])])
    found = [wheel for folder in folders for wheel in wheels(folder)]
    if not found:
        refuse(f"{sys.executable} has no pip, and there is no Debian package of it", "install pip in the image")
    return [sys.executable, f"{found[0]}/pip"]


def wheels(folder: Path) -> list[Path]:
    return sorted(folder.glob("pip-*.whl"))


def make_tools() -> None:
    """/opt/tools: the pip of the build stages."""
    run(sys.executable, "-m", "venv", "--clear", "--without-pip", TOOLS)
    site, _ = answer("import sysconfig; print(sysconfig.get_path('purelib'))", python=str(TOOLS / "bin/python"))
    bundle = Path("/opt/ca-bundle.crt")
    trust = {"PIP_CERT": str(bundle)} if bundle.stat().st_size else {}
    install = (*pip_to_start_with(), "install", "-q", "--no-cache-dir", "--find-links", "/opt/wheels")
    run(*install, "--target", site, "-r", tool("pip"), **trust)


def make_node_python() -> None:
    """The node program's own Python, so that it and the image's packages never meet."""
    shutil.rmtree(RESULT, ignore_errors=True)
    venv = RESULT / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    run("pip", "--python", venv / "bin/python", "install", "-q", "-r", LOCKS / "node.txt")
    site, _ = answer("import sysconfig; print(sysconfig.get_path('purelib'))", python=str(venv / "bin/python"))
    Path(site, "hvdcloud.pth").write_text(f"{RESULT}/program\n")
    script(RESULT / "python", sys.executable)
    (RESULT / "bin").mkdir()
    (RESULT / "bin/hvdcloud-node").symlink_to("/usr/local/bin/hvdcloud-node")
    if not shutil.which("python"):
        script(RESULT / "bin/python", sys.executable)


def script(path: Path, program: str) -> None:
    """A program under another name; a link would lose the virtual environment that it may be in."""
    path.write_text(f'#!/bin/sh\nexec {program} "$@"\n')
    path.chmod(0o755)


def make_horovod(framework: str, version: str, cuda: dict[str, str]) -> None:
    """Compiles Horovod against the image's framework, into /opt/horovod.

    Args:
        cuda: what the recipe needs to know to compile for GPUs; empty without.
    """
    # What its setup.py needs.
    run("pip", "install", "-q", "-r", LOCKS / "tools.txt")
    site, _ = answer("import sysconfig; print(sysconfig.get_path('purelib'))", python=str(TOOLS / "bin/python"))
    packages = [entry for entry in sys.path if entry.endswith("-packages")]
    Path(site, "image.pth").write_text("".join(f"{entry}\n" for entry in packages))
    source = Path("/tmp/horovod")
    source.mkdir()
    os.chdir(source)
    run(
        OWN / "horovod.sh", framework, TOOLS / "bin/python",
        PATCHES=" ".join(patches(version)), PATCHES_DIR=str(OWN / "patches"),
        **cuda,
    )  # fmt: skip
    install = ("pip", "--python", RESULT / "python", "install", "-q", "--prefix", HOROVOD)
    run(*install, "-r", LOCKS / "horovod.txt")
    run(*install, "--no-deps", *source.glob("dist/horovod-*.whl"))
    if answer("import distutils")[1]:
        # Horovod's launcher imports it; Python 3.12 and newer have it from setuptools only.
        run(*install, "-r", tool("setuptools"))
    # So that requirements see it too.
    (folder,) = HOROVOD.glob("lib/python3.*/site-packages")
    Path(sysconfig.get_path("purelib"), "horovod.pth").write_text(f"{folder}\n")
    for library in folder.glob("horovod/**/*.so"):
        run("strip", "--strip-unneeded", library)


def patches(version: str) -> list[str]:
    """Those of the highest version that is not above the framework's, else those of the lowest."""
    parts = (entry.partition(":") for entry in os.environ["HOROVOD_PATCHES"].split())
    table = sorted((number(row[0]), row[2]) for row in parts)
    _, names = next((row for row in reversed(table) if row[0] <= number(version)), table[0])
    return [name for name in names.split(",") if name]


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:2])


def constraints(frameworks: Iterable[str], horovod: str) -> list[str]:
    """For pip: what a project's requirements may not replace."""
    projects = importlib.metadata.packages_distributions()
    names = [name for framework in frameworks for name in projects.get(framework, [])]
    found = [f"horovod=={horovod}"] if horovod else []
    found += [f"{name}=={importlib.metadata.version(name)}" for name in names]
    if importlib.util.find_spec("numpy") is not None:
        major = int(importlib.metadata.version("numpy").partition(".")[0])
        found.append(f"numpy>={major},<{major + 1}")
    return found


def main(framework: str, device: str) -> None:
    """Prepares everything, or refuses."""
    # What the image tells its own pip is not meant for ours.
    for name in ("PIP_CONSTRAINT", "PIP_TARGET", "PIP_USER", "PIP_REQUIRE_VIRTUALENV"):
        os.environ.pop(name, None)
    wanted = os.environ.get("HOROVOD_VERSION", "")
    known = framework != "any"
    facts = framework_facts(framework, device) if known else {}
    horovod = horovod_version(framework, device) if wanted else ""
    compiles = bool(wanted) and not horovod
    cuda = {}
    if device == "cuda" and compiles:
        cuda = {"CUDA_HOME": str(toolkit()), "CAPABILITIES": capabilities(facts["capabilities"])}
    said = f"{framework} {facts['version']}" if known else "any framework"
    print(f"hvdcloud: {sys.executable} {said}, Horovod {horovod or 'none'}", flush=True)
    runtime = missing((*NEEDED, *OPEN_MPI) if wanted else NEEDED)
    if wanted:
        install_packages([*missing(COMPILERS), *(compiler_packages() if compiles else [])])
    make_tools()
    make_node_python()
    HOROVOD.mkdir(exist_ok=True)
    if compiles:
        make_horovod(framework, facts["version"], cuda)
    kept = constraints([framework] if known else FACTS, horovod or wanted)
    (OWN / "constraints.txt").write_text("".join(f"{line}\n" for line in kept))
    description = {**facts, "framework": framework, "horovod": horovod, "packages": runtime}
    (RESULT / "node.json").write_text(json.dumps(description, indent=2) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
