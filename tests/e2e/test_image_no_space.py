"""A build on an engine whose disk is full: a second engine of this machine, on a small disk of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvdcloud import engine
from hvdcloud.config import ImageConfig
from hvdcloud.errors import ExitCode, ImageError, NodeError
from hvdcloud.image.build import build
from hvdcloud.image.stream import ignore
from tests.harness import until

DISK_MB = 64


@pytest.fixture
def small_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """DOCKER_HOST names an engine with little space for the duration of the test."""
    dockerd = shutil.which("dockerd", path=f"{os.environ['PATH']}:/usr/sbin")
    if os.geteuid() != 0 or dockerd is None:
        pytest.skip("only root can mount a small disk and start a second engine")
    # Not tmp_path: the path of a Unix socket may not be longer than 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="hvd-"))
    data = folder / "data"
    data.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "none", str(data)], check=True)
    process = None
    try:
        with (folder / "log").open("wb") as log:
            # In a network namespace of its own: an engine without a bridge deletes the machine's docker0 at start.
            command = ["unshare", "--net", dockerd, "--bridge=none", "--iptables=false", "--ip6tables=false"]
            command += ["--data-root", str(data), "--exec-root", str(folder / "exec"), "--pidfile", str(folder / "pid")]
            command += ["--host", f"unix://{folder}/docker.sock"]
            process = subprocess.Popen(command, stdout=log, stderr=log)
        monkeypatch.setenv("DOCKER_HOST", f"unix://{folder}/docker.sock")
        until(answers, seconds=60, what=f"the small engine, whose log is {folder}/log")
        yield
    finally:
        if process is not None:
            process.terminate()
            process.wait(timeout=60)
        subprocess.run(["umount", "--lazy", str(data)], check=True)
        shutil.rmtree(folder)


def answers() -> bool:
    try:
        engine.connect().close()
    except NodeError:
        return False
    return True


def test_a_full_disk_is_named_with_the_command_that_shows_what_fills_it(small_engine: None, tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    # As large as torch's real one, and of no content.
    with (wheels / "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl").open("wb") as wheel:
        wheel.truncate(3 * DISK_MB << 20)
    with pytest.raises(ImageError, match="the disk of the Docker engine is full") as raised:
        build(ImageConfig(requirements=None, find_links=str(wheels)), project_dir=tmp_path, progress=ignore)
    assert raised.value.code == ExitCode.IMAGE
    assert "docker system df" in raised.value.hint
    assert "no space left on device" in raised.value.details
