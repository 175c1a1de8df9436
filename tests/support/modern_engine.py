"""A newer Docker engine than this machine's, with containerd's image store, and buildx: Debian 13's.

Its programs are unpacked into a folder, nothing is installed. They run on Debian 12 as they are (glibc 2.34); runc is
this machine's, since Debian 13's needs a newer one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.engines import SecondEngine, second_engine

SUITE = "trixie"
_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_PROGRAMS = {
    "docker.io": ("usr/sbin/dockerd", "usr/sbin/docker-proxy"),
    "containerd": ("usr/bin/containerd", "usr/bin/containerd-shim-runc-v2"),
    "docker-cli": ("usr/bin/docker",),
    "docker-buildx": ("usr/libexec/docker/cli-plugins/docker-buildx",),
}
"""What is taken out of each package."""


@dataclass(frozen=True)
class ModernEngine:
    """An engine with containerd's image store.

    Attributes:
        programs: for PATH: a `docker` that goes with it.
        config: for DOCKER_CONFIG: a folder that has buildx as that one's plugin.
    """

    engine: SecondEngine
    programs: Path
    config: Path

    def use(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have the test, and what it starts, use this engine and its client."""
        monkeypatch.setenv("DOCKER_HOST", self.engine.docker_host)
        monkeypatch.setenv("DOCKER_CONFIG", str(self.config))
        monkeypatch.setenv("PATH", f"{self.programs}{os.pathsep}{os.environ['PATH']}")


@contextmanager
def modern_engine() -> Iterator[ModernEngine]:
    """The engine for the block; skips the test where Debian's packages can't be had."""
    folder = _unpacked()
    options = [f"--config-file={folder / 'containerd.json'}"]
    with second_engine(programs=folder / "bin", options=options, bridge=True) as found:
        yield ModernEngine(engine=found, programs=folder / "bin", config=folder / "config")


def _unpacked() -> Path:
    """The folder with the programs, which is kept for the next time."""
    key = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    folder = Path(tempfile.gettempdir()) / f"hvdcloud-engine-{os.getuid()}-{key}"
    if folder.exists():
        return folder
    if shutil.which("apt-get") is None or not _KEYS.exists():
        pytest.skip(f"there is no apt that could load Debian's {SUITE}")
    with tempfile.TemporaryDirectory(prefix="hvd-", dir=folder.parent) as work:
        made = Path(work) / "made"
        _unpack(Path(work), made)
        (made / "containerd.json").write_text('{"features": {"containerd-snapshotter": true}}\n')
        plugins = made / "config" / "cli-plugins"
        plugins.mkdir(parents=True)
        (made / "bin" / "docker-buildx").rename(plugins / "docker-buildx")
        try:
            made.rename(folder)
        except OSError:
            # Another process was faster.
            if not folder.exists():
                raise
    return folder


def _unpack(work: Path, made: Path) -> None:
    sources = work / "sources"
    for each in (sources, work / "lists" / "partial", work / "packages", made / "bin"):
        each.mkdir(parents=True)
    mirror = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
    (sources / f"{SUITE}.sources").write_text(
        f"Types: deb\nURIs: {mirror}\nSuites: {SUITE}\nComponents: main\nSigned-By: {_KEYS}\n"
    )
    options = {
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": sources,
        "Dir::State::lists": work / "lists",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": work,
        "Acquire::Languages": "none",
        "Acquire::Retries": 3,
        # Where root calls it, else another user fetches, who may not enter this folder.
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    for command in (["update"], ["download", *_PROGRAMS]):
        done = subprocess.run([*apt, *command], cwd=work / "packages", capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"apt-get {command[0]} of Debian's {SUITE}: {done.stderr.strip()}")
    for package, programs in _PROGRAMS.items():
        [file] = (work / "packages").glob(f"{package}_*.deb")
        subprocess.run(["dpkg-deb", "--extract", file, work / package], check=True)
        for program in programs:
            (work / package / program).rename(made / "bin" / Path(program).name)
